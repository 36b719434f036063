-- The action "lua.idv_verify" for haproxy 2.6 or newer. Looks up the user in the variable txn.idv_input. Sets
-- txn.idv_code to the code of the response, or to "" without one, and a variable for each value of the user.
local url, key = os.getenv("IDV_URL"), os.getenv("IDV_KEY")

-- More than server.request_timeout (2 s). Without a response, haproxy sends a request four times.
local TIMEOUT = 2500
local USER = { "plan", "nickname", "card-number", "profile-url" }

local function first(headers, name)
    local values = headers and headers[name]
    return values and values[0] or ""
end

core.register_action("idv_verify", { "http-req" }, function(txn)
    local headers = { ["authorization"] = { "Bearer " .. key } }
    local input = txn:get_var("txn.idv_input")
    if input and input ~= "" then
        headers["x-idv-input"] = { input }
    end
    local sent, response = pcall(function()
        return core.httpclient():get({ url = url, headers = headers, timeout = TIMEOUT })
    end)
    local received = sent and response and response.headers
    txn:set_var("txn.idv_code", first(received, "x-idv-code"))
    local seconds = first(received, "retry-after")
    txn:set_var("txn.idv_retry_after", seconds ~= "" and seconds or "1")
    for _, name in ipairs(USER) do
        txn:set_var("txn.idv_" .. name:gsub("-", "_"), first(received, "x-idv-" .. name))
    end
end)
