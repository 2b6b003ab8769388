-- SPDX-License-Identifier: Apache-2.0
--
-- Looks up hints on one node with a bounded answer, and takes the locks that are free. It is used
-- where large copies stand; otherwise SET or MGET is (src/store/hybrid/hints.c). KEYS: the hints;
-- ARGV: for each the lock to put there and its time in ms. A value is a rank (41 digits), a mark
-- (16 bytes) and more; see src/store/hybrid/hybrid.h. Answers for each key 1 where the mark stands
-- there now, otherwise the value that does; '' where the answer would grow too long. A lock of this
-- mark stays as it is: it may say more than the given lock.
local answers, room = {}, 4194304
for i, key in ipairs(KEYS) do
  local lock, ttl = ARGV[2 * i - 1], ARGV[2 * i]
  local there = redis.pcall('SET', key, lock, 'NX', 'GET', 'PX', ttl)
  if not there then
    answers[i] = 1
  elseif type(there) ~= 'string' then
    redis.call('SET', key, lock, 'PX', ttl)
    answers[i] = 1
  elseif string.sub(there, 42, 57) == string.sub(lock, 42, 57) then
    answers[i] = 1
  else
    room = room - #there
    answers[i] = room >= 0 and there or ''
  end
end
return answers
