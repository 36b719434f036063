-- Sends the requests of a file in order: one head for all, and one body per line.
-- wrk -s requests.lua URL -- FILE HEAD-BYTES [MEAN-PAUSE-IN-MILLISECONDS]

local requests, at = {}, 0

function init(args)
   local file = assert(io.open(args[1], "rb"))
   local head = file:read(tonumber(args[2]))
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
