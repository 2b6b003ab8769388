-- Each request is the same POST of 64 bytes to the path after "--". Where a key follows the path,
-- the request has that key.
local text

function init(args)
  text = "POST " .. args[1] .. " HTTP/1.1\r\nHost: api\r\nContent-Type: application/json\r\n"
    .. (args[2] and "Idempotency-Key: " .. args[2] .. "\r\n" or "")
    .. 'Content-Length: 64\r\n\r\n{"amount":1999,"currency":"eur","customer":"cus_0123456789abcd"}'
end

function request()
  return text
end

function done(summary, latency)
  local e = summary.errors
  print(string.format("SUM %d %d %d %d %d", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99),
    e.connect + e.read + e.write + e.timeout + e.status))
end
