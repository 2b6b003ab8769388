-- SPDX-License-Identifier: Apache-2.0
--
-- Takes locks on one node (src/store/redlock/redlock.c). KEYS: the locks; ARGV: for each its value
-- and its time in ms. Answers for each 1 where the lock has this value now, otherwise its value. A
-- repeated take with the lock's own value gets the whole time again, so that a take whose reply was
-- lost may be repeated.
local answers = {}
for i, key in ipairs(KEYS) do
  local value = ARGV[2 * i - 1]
  local holder = redis.call('GET', key)
  if holder and holder ~= value then
    answers[i] = holder
  else
    redis.call('SET', key, value, 'PX', ARGV[2 * i])
    answers[i] = 1
  end
end
return answers
