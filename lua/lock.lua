-- SPDX-License-Identifier: Apache-2.0
--
-- Takes locks on one node (src/store/redlock/redlock.c). KEYS: the locks; ARGV: for each its value and its time in
-- ms. Answers for each 1 where it is the value's now, else the value that holds it. A value that holds the
-- lock already gets the whole time again, so that repeating a take whose reply was lost is right.
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
