-- Each request is an operation of its own: a POST of 64 bytes to the path after "--", with the
-- headers of -H. Where a number follows, each connection waits about that many ms before each
-- request. Latencies leave the wait out.
local file = assert(io.open("/dev/urandom", "rb"))
local run = file:read(8):gsub(".", function(c) return string.format("%02x", c:byte()) end)
file:close()
local head, count = nil, 0
local tail = "\r\nContent-Length: 64\r\n\r\n"
  .. '{"amount":1999,"currency":"eur","customer":"cus_0123456789abcd"}'

function init(args)
  if args[2] then
    local ms = tonumber(args[2])
    delay = function() return math.random(0, 2 * ms) end
  end
  local more = ""
  for name, value in pairs(wrk.headers) do
    if name ~= "Host" then
      more = more .. name .. ": " .. value .. "\r\n"
    end
  end
  head = "POST " .. args[1] .. " HTTP/1.1\r\nHost: api\r\nContent-Type: application/json\r\n"
    .. more
    .. "Idempotency-Key: " .. run .. "-"
end

function request()
  count = count + 1
  return head .. count .. tail
end

function done(summary, latency)
  local e = summary.errors
  print(string.format("SUM %d %d %d %d %d", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99),
    e.connect + e.read + e.write + e.timeout + e.status))
end
