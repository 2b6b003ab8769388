-- SPDX-License-Identifier: Apache-2.0
--
-- Releases locks on one node (src/store/redlock/redlock.c). KEYS: the locks; ARGV: the value of
-- each. A lock with another value is left alone. Answers how many were deleted.
local deleted = 0
for i, key in ipairs(KEYS) do
  if redis.call('GET', key) == ARGV[i] then
    deleted = deleted + redis.call('DEL', key)
  end
end
return deleted
