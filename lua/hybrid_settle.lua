-- SPDX-License-Identifier: Apache-2.0
--
-- Brings hints up to what PostgreSQL has said (src/store/hybrid/hints.c). KEYS: the hints; ARGV: for each what to do, and
-- with what: a time in ms and a value, which takes the place of nothing, of what is no hint, and of a lower or equal
-- rank; `drop` and a mark, whose lock is deleted; `forget`, and whatever stands there is deleted. Answers nothing.
for i, key in ipairs(KEYS) do
  local what, value = ARGV[2 * i - 1], ARGV[2 * i]
  local held = redis.pcall('GETRANGE', key, 0, 56)
  local is_hint = type(held) == 'string' and #held == 57
  if what == 'forget' or what == 'drop' and is_hint and string.sub(held, 42, 57) == value then
    redis.call('DEL', key)
  elseif what ~= 'drop' and (not is_hint or string.sub(held, 1, 41) <= string.sub(value, 1, 41)) then
    redis.call('SET', key, value, 'PX', what)
  end
end
return 0
