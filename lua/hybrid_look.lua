-- SPDX-License-Identifier: Apache-2.0
--
-- Looks at hints on one node, and takes the locks that nobody has, where large copies stand, so that the answer
-- must be bounded; else SET and MGET do (src/store/hybrid/hints.c). KEYS: the hints; ARGV: for
-- each the lock to put there and its time in ms. A value is a rank (41 digits), a mark (16 bytes) and more; see
-- src/store/hybrid.h. Answers for each 1 where the mark stands there now, else the value that does; '' where the answer
-- would grow too long. A lock of this mark is left as it is: it may say more than the one that was brought.
local answers, room = {}, 4194304
for i, key in ipairs(KEYS) do
  local lock, ttl = ARGV[2 * i - 1], ARGV[2 * i]
  local held = redis.pcall('SET', key, lock, 'NX', 'GET', 'PX', ttl)
  if not held then
    answers[i] = 1
  elseif type(held) ~= 'string' then
    redis.call('SET', key, lock, 'PX', ttl)
    answers[i] = 1
  elseif string.sub(held, 42, 57) == string.sub(lock, 42, 57) then
    answers[i] = 1
  else
    room = room - #held
    answers[i] = room >= 0 and held or ''
  end
end
return answers
