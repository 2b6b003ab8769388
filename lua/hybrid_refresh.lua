-- SPDX-License-Identifier: Apache-2.0
--
-- Brings hints up to PostgreSQL's answers (src/store/hybrid/hints.c). KEYS: the hints; ARGV: two
-- for each. A time in ms and a value: the value replaces nothing, no hint, or a hint of lower or
-- equal rank. `drop` and a mark: a lock of this mark is deleted. `forget` and anything: whatever
-- stands there is deleted. Answers nothing.
for i, key in ipairs(KEYS) do
  local what, value = ARGV[2 * i - 1], ARGV[2 * i]
  local there = redis.pcall('GETRANGE', key, 0, 56)
  local is_hint = type(there) == 'string' and #there == 57
  if what == 'forget' or what == 'drop' and is_hint and string.sub(there, 42, 57) == value then
    redis.call('DEL', key)
  elseif what ~= 'drop' and
    (not is_hint or string.sub(there, 1, 41) <= string.sub(value, 1, 41)) then
    redis.call('SET', key, value, 'PX', what)
  end
end
return 0
