-- Sends the requests of a file in order: one head for all, and one body per line.
-- wrk -s requests.lua URL -- FILE HEAD-BYTES [MEAN-PAUSE-IN-MILLISECONDS]

-- In the head, {id}, {span} and {address} are other ones for each request, {kind} one of 60 in turn.

local requests, at, varies = {}, 0, false
local values = {}

local function hex(count)
   local digits = {}
   for i = 1, count / 4 do
      digits[i] = string.format("%04x", math.random(0, 65535))
   end
   return table.concat(digits)
end

function values.id() return hex(32) end
function values.span() return hex(16) end
function values.kind() return at % 60 end
function values.address()
   return string.format("192.0.%d.%d", math.random(0, 255), math.random(1, 254))
end

function init(args)
   local file = assert(io.open(args[1], "rb"))
   local head = file:read(tonumber(args[2]))
   varies = head:find("{%a+}") ~= nil
   for body in file:lines() do
      requests[#requests + 1] = head .. body
   end
   file:close()
   local pause = tonumber(args[3])
   if pause then
      math.randomseed(7)
      -- Whole milliseconds, uniform around the mean; the fraction is right on average.
      function delay()
         return math.floor(2 * pause * math.random() + math.random())
      end
   end
end

function request()
   at = at % #requests + 1
   if varies then
      return (requests[at]:gsub("{(%a+)}", function(name) return values[name]() end))
   end
   return requests[at]
end

function done(summary, latency)
   local errors = summary.errors
   io.write(string.format(
      '\n{"requests": %d, "microseconds": %d, "errors": %d, "failed": %d, "p50": %d, "p99": %d}\n',
      summary.requests, summary.duration, errors.status,
      errors.connect + errors.read + errors.write + errors.timeout,
      latency:percentile(50), latency:percentile(99)))
end
