-- SPDX-License-Identifier: Apache-2.0
--
-- Whether this node takes writes (src/store/redis/check.c): writes KEYS[1] and deletes it in the
-- same step, so that no client sees it. It uses every command of lua/machine.lua: a missing right
-- shows.
redis.call('TIME')
redis.call('GETRANGE', KEYS[1], 0, redis.call('STRLEN', KEYS[1]))
redis.call('SETRANGE', KEYS[1], 0, '')
if redis.call('EXISTS', KEYS[1]) == 0 and not redis.call('GET', KEYS[1]) then
  redis.call('SET', KEYS[1], 'check', 'PX', 1000)
  redis.call('UNLINK', KEYS[1])
end
return 0
