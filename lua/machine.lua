-- SPDX-License-Identifier: Apache-2.0
--
-- The machine inside Redis: docs/design.md, "The machine", function for function as in
-- src/core/machine.c. tests/store compares the two, times and fences included.
--
--   KEYS[…]  for each op its key and its tombstone's, which may be the same; a key may come several
-- times, and its ops are judged in order
--   ARGV[1]  the most bytes of records in the reply; judging stops before a record that would pass
-- it
--   ARGV[2]  '1': the caller will WAIT for replicas
--   ARGV[3…] the fields of each op; COMPLETE, FAIL, RESOLVE and IMPORT have headers and body behind
-- them
--
-- The reply: seconds and µs of the server's clock, then a number and a string for each op that was
-- judged. The number is the verdict, plus DIFFERS × in what, plus SHOWN (the string ends with the
-- stored outcome) or OWN (the outcome is the op's own), plus REPLICATED (the verdict counts once
-- the replicas have it). The string is the record behind its mark: no mark leaves Redis. Negative
-- numbers, below, are no verdicts. src/store/redis/ops.c is the other side.
--
-- The invariants: a value that is not exactly a record is never taken for "absent"; a write that
-- Redis refuses leaves the record as it was, and ends neither the script nor the other ops. Numbers
-- are doubles, which are exact below 2^53: larger numbers are never written, and are damage where
-- they are read. Rejected: a hash per record (twice the memory and time). Rejected: a checksum (no
-- function here computes one quickly, and Redis checks its own files).
--
-- A record that leaves a tombstone goes when its retention is over, and the tombstone is a second
-- value, without headers and body, that stays for longer. A key whose record is there has no use
-- for its tombstone. In a cluster the two keys are one, and the record keeps its outcome until the
-- tombstone ends: while a slot moves, its nodes refuse what names two keys of which one is missing.

local STARTED, COMPLETED, FAILED_STATE, UNKNOWN_STATE = 1, 2, 3, 4
local CLAIMED, IN_FLIGHT, DONE, FAILED, UNKNOWN, MISMATCH, OK, LOST, FOUND, ABSENT =
  1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local DIFFERS, SHOWN, OWN, REPLICATED = 16, 64, 128, 256
local REFUSED, CORRUPT, UNSUPPORTED, LATER = -1, -2, -3, -4
local CLAIM, RENEW, COMPLETE, FAIL, READ, LOOKUP, RESOLVE, IMPORT = 1, 2, 3, 4, 5, 6, 8, 9
local RERUN, RECONCILE = 1, 3
local RESOLVE_COMPLETE, FORGET = 1, 3

-- A record: version mark · state hold stale ran reruns body_kept · status attempt spent · fence ·
-- created updated lease_until expires (0: never) · retention in ms (0: for ever) · resolved · the
-- lengths of headers, body, scope and resolved_by · lengths of owner (0 or 32) and what · state and
-- status that a RESOLVE replaced (0: none); then what the record is bound to: fingerprint, caller,
-- owner, scope, what, resolved_by; then headers and body. Each string costs Lua a hash, so strings
-- that stay together are one string. Version 1 ends its head before the length of the owner.
-- The mark is made by the program (hapax__mark()): no token reaches Redis. Version 1 has the token
-- there, which is no token's mark. So a claim of version 1 is ended by a program of that version,
-- or by its lease. Rejected: redis.sha1hex of the token, which MONITOR and SLOWLOG would then show.
local HEAD = '>Bc16BBBBBBI2I4I4I8I8I8I8I8I8I8I4I4BBBBBI2'
local HEAD_SIZE, REQUEST_SIZE, MARK_END, VERSION = 104, 64, 17, 2
local FENCE_AT = 34 -- created and updated behind it
local HEAD_1_SIZE, ADDED = 99, '\0\0\0\0\0'
local BY_MAX, BOUND_MAX, HEADERS_MAX, BODY_MAX, EXACT = 64, 670, 65536, 16777216, 2 ^ 53
local OWNER_SIZE = 32
-- Where a record's state stands, and the most of what it is bound to ends. As text: of a number
-- Redis makes a text in each call.
local STATE_AT, BOUND_AT = tostring(MARK_END), tostring(HEAD_SIZE + BOUND_MAX - 1)
-- Ten years, as in hapax_store_run(): so `expires` stays exact.
local RETENTION_MAX = 315360000000
-- How long a record is kept for which nothing ever ran, at most, in ms.
local REFUSED_KEPT = 60000

local pack, unpack, sub, byte = struct.pack, struct.unpack, string.sub, string.byte
local call = redis.pcall

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local waits = ARGV[2] == '1'
local wrote, to_replicate, old_version = false, nil, nil
local key, grave, arg, headers, body -- of the op in hand
local place -- the one of the two keys under which the record in hand stands
local expiry_us, expiry = 0, '' -- the last one, as text: most of a batch share it

-- ---- records ----------------------------------------------------------------------------

-- The record in hand. All ops share one table: making a table takes as long as judging a record.
local r = {
  value = '', bound_end = 0, mark = '', state = 0, hold = 0, stale = 0, ran = 0, reruns = 0,
  kept = 0, status = 0, attempt = 0, spent = 0, fence = 0, created = 0, lease = 0, expires = 0,
  retention = 0, resolved = 0, headers_len = 0, body_len = 0, scope_len = 0, by_len = 0,
  owner_len = 0, what_len = 0, old_state = 0, old_status = 0, version = VERSION, leaves = false
}

-- Reads a value of this size, or the beginning of one, as the record in hand. Returns what is wrong
-- with it, or nothing.
local function read(value, size)
  local version = byte(value)
  if version == 1 and #value >= HEAD_1_SIZE then
    value = '\2' .. sub(value, 2, HEAD_1_SIZE) .. ADDED .. sub(value, HEAD_1_SIZE + 1)
    size = size + #ADDED
  elseif version ~= VERSION then
    return (#value == 0 or version == 1) and CORRUPT or UNSUPPORTED
  end
  if #value < HEAD_SIZE + REQUEST_SIZE then
    return CORRUPT
  end
  local _, mark, state, hold, stale, ran, reruns, kept, status, attempt, spent, fence, created,
    updated, lease, expires, retention, resolved, headers_len, body_len, scope_len, by_len,
    owner_len, what_len, old_state, old_status = unpack(HEAD, value)
  local bound_end = HEAD_SIZE + REQUEST_SIZE + owner_len + scope_len + what_len + by_len
  if size ~= bound_end + headers_len + body_len or state < STARTED or state > UNKNOWN_STATE or
    hold > 1 or stale > 1 or ran > 1 or reruns > 1 or kept > 1 or status > 999 or
    by_len > BY_MAX or headers_len > HEADERS_MAX or body_len > BODY_MAX or
    attempt >= 4294967295 or spent >= 4294967295 or fence >= EXACT or created >= EXACT or
    updated >= EXACT or lease >= EXACT or expires >= EXACT or retention > RETENTION_MAX or
    resolved >= EXACT or expires > 0 and expires < updated or lease > 0 and state ~= STARTED or
    owner_len > 0 and owner_len ~= OWNER_SIZE or old_state > UNKNOWN_STATE or old_status > 999 then
    return CORRUPT
  end
  r.value, r.bound_end, r.mark = value, bound_end, mark
  r.state, r.hold, r.stale = state, hold, stale
  r.ran, r.reruns, r.kept, r.status, r.attempt, r.spent = ran, reruns, kept, status, attempt, spent
  r.fence, r.created, r.lease, r.expires, r.retention = fence, created, lease, expires, retention
  r.resolved, r.headers_len, r.body_len = resolved, headers_len, body_len
  r.scope_len, r.by_len, r.owner_len, r.what_len = scope_len, by_len, owner_len, what_len
  r.old_state, r.old_status, r.version = old_state, old_status, version
  r.leaves = state == COMPLETED and expires > 0 and expires > updated + retention * 1000
end

-- Answers with the record as it is, and with its outcome only where the outcome is the answer.
local function say(verdict)
  local completed = r.state == COMPLETED
  local whole = verdict == FOUND or verdict == FAILED or
    completed and (verdict == DONE or verdict == LOST or verdict == OK)
  local code = verdict
  if waits and (completed or verdict == CLAIMED or verdict == OK) then
    code, to_replicate, old_version = code + REPLICATED, place, r.version
  end
  if whole then
    return code + SHOWN, sub(r.value, MARK_END + 1)
  end
  return code, sub(r.value, MARK_END + 1, r.bound_end)
end

-- Nothing ever ran for the record in hand.
local function unbound()
  return r.state == FAILED_STATE and r.ran == 0 and r.spent == 0 and r.stale == 0 and
    r.resolved == 0
end

-- Writes the record in hand, last written at `updated`, which goes when its retention ends, and the
-- tombstone that it leaves. Returns the value, and the refusal. `left`: the key has a tombstone.
local function put(updated, bound, headers, body, expires, ends, left)
  local reply
  if grave == key then
    ends = expires
  end
  r.leaves = expires > ends
  local value = pack(HEAD, VERSION, r.mark, r.state, r.hold, r.stale, r.ran, r.reruns, r.kept,
    r.status, r.attempt, r.spent, r.fence, r.created, updated, r.lease, expires, r.retention,
    r.resolved, r.headers_len, r.body_len, r.scope_len, r.by_len, r.owner_len, r.what_len,
    r.old_state, r.old_status) .. bound .. headers .. body
  if r.leaves then
    reply = call('SET', grave, pack(HEAD, VERSION, r.mark, r.state, r.hold, r.stale, r.ran,
      r.reruns, 0, r.status, r.attempt, r.spent, r.fence, r.created, updated, r.lease, expires,
      r.retention, r.resolved, 0, 0, r.scope_len, r.by_len, r.owner_len, r.what_len, r.old_state,
      r.old_status) .. bound, 'PXAT', string.format('%.0f', math.ceil(expires / 1000)))
    if reply.err then
      return value, reply.err
    end
  end
  if expires == 0 then
    reply = call('SET', key, value)
  else
    if ends ~= expiry_us then
      expiry_us, expiry = ends, string.format('%.0f', math.ceil(ends / 1000))
    end
    reply = call('SET', key, value, 'PXAT', expiry)
  end
  -- A door may not delete; of a tombstone that nobody needs the next millisecond is the last.
  if grave ~= key and (reply.err and r.leaves or left and not r.leaves and not reply.err) then
    call('SET', grave, '', 'PX', 1)
  end
  return value, reply.err
end

-- Stamps the record and decides when its retention ends: never for `unknown`, nor for `started`
-- under hold, nor where a hook was to be asked about the attempts before and was not; soon where
-- nothing ever ran; and never before the lease ends. Without new headers and body the stored ones
-- stay. With `after`, a tombstone stays for so long behind the record.
local function write(verdict, bound, own_headers, own_body, retention, after)
  local expires, ends, kept = 0, 0, retention or r.retention
  if r.state ~= STARTED then
    r.lease = 0
  end
  if unbound() and (kept == 0 or kept > REFUSED_KEPT) then
    kept = REFUSED_KEPT
  end
  local held = r.hold == 1 and (r.state == STARTED or r.state == FAILED_STATE and r.stale == 1)
  if kept > 0 and r.state ~= UNKNOWN_STATE and not held then
    ends = now + kept * 1000
    if ends < r.lease then
      ends = r.lease
    end
    expires = ends + (after or 0) * 1000
  end
  if own_headers then
    r.headers_len, r.body_len = #own_headers, #own_body
  else
    own_headers, own_body = sub(r.value, r.bound_end + 1), ''
  end
  local value, refusal = put(now, bound, own_headers, own_body, expires, ends, r.leaves)
  if refusal then
    return REFUSED, refusal
  end
  wrote = true
  if waits then
    verdict = verdict + REPLICATED
  end
  return verdict, sub(value, MARK_END + 1, HEAD_SIZE + #bound)
end

local function bound()
  return sub(r.value, HEAD_SIZE + 1, r.bound_end)
end

local function next_fence(previous)
  return previous + 1 > now and previous + 1 or now
end

-- ---- CLAIM ------------------------------------------------------------------------------

-- Grants the claim on the record in hand, which is a fresh one or the old one.
local function grant(bound, mark, on_expired, reruns, lease, retention)
  r.state = STARTED
  if on_expired ~= RERUN then
    r.hold = 1
  end
  if reruns == 0 then
    r.reruns = 0
  end
  r.ran = 0
  r.attempt = r.attempt + 1
  r.fence = next_fence(r.fence)
  r.mark = mark
  r.lease = now + lease * 1000
  r.retention = retention
  r.status, r.kept = 0, 0
  return write(CLAIMED, bound, '', '')
end

local function to_unknown(bound)
  r.state, r.stale = UNKNOWN_STATE, 1
  return write(UNKNOWN, bound)
end

-- Whether the fingerprint (at 1) or the caller (at 33) is another one; hapax__any() in machine.c.
local function other(old, request, at)
  local here = sub(old, at, at + 31)
  return here ~= sub(request, at, at + 31) and here ~= string.rep('\255', 32)
end

local function claim(exists)
  local _, mark, on_expired, reruns, max, lease, retention, owner_len, scope_len, at =
    unpack('>Bc16BBI4I8I8BB', arg)
  local what_len = #arg - at - REQUEST_SIZE - owner_len - scope_len + 1
  if not exists then
    r.hold, r.stale, r.reruns, r.attempt, r.spent, r.fence = 0, 0, reruns, 0, 0, 0
    r.created, r.resolved, r.by_len, r.old_state, r.old_status = now, 0, 0, 0, 0
    r.owner_len, r.scope_len, r.what_len, r.leaves = owner_len, scope_len, what_len, false
    return grant(sub(arg, at), mark, on_expired, reruns, lease, retention)
  end

  local state = r.state
  if r.mark == mark then
    return say(state == STARTED and CLAIMED or state == COMPLETED and DONE or LOST)
  end

  -- Where nothing ever ran, the record is not bound to its request.
  local old = bound()
  local request = sub(arg, at, at + REQUEST_SIZE - 1)
  if sub(old, 1, REQUEST_SIZE) ~= request then
    local differs = (other(old, request, 33) and 2) or (other(old, request, 1) and 1)
    if differs and not unbound() then
      local code, shown = say(MISMATCH)
      return code + DIFFERS * differs, shown
    end
  end
  if state == STARTED and now < r.lease then
    return say(IN_FLIGHT)
  end

  local reconcile = on_expired == RECONCILE
  local holds = (r.hold == 1 or on_expired ~= RERUN) and not reconcile
  if state == STARTED then
    if holds then
      return to_unknown(old)
    end
    r.stale, r.spent = 1, r.spent + 1
    if not reconcile and max > 0 and r.spent >= max then
      r.state, r.ran = FAILED_STATE, 1
      return write(FAILED, old)
    end
  elseif state == FAILED_STATE then
    if r.stale == 1 and holds then
      return to_unknown(old)
    end
    if max > 0 and r.spent >= max and not (r.stale == 1 and r.hold == 1) then
      return say(FAILED)
    end
  elseif state == UNKNOWN_STATE then
    if not reconcile then
      return say(UNKNOWN)
    end
    r.stale, r.spent = 1, r.spent + 1
  else
    if r.reruns == 0 or reruns == 0 then
      return say(DONE)
    end
    r.spent = 0
  end
  local named_end = REQUEST_SIZE + r.owner_len + r.scope_len
  old = request .. sub(old, REQUEST_SIZE + 1, named_end) .. sub(arg, #arg - what_len + 1) ..
    sub(old, named_end + r.what_len + 1)
  r.what_len = what_len
  return grant(old, mark, on_expired, reruns, lease, retention)
end

-- ---- RENEW, COMPLETE, FAIL --------------------------------------------------------------

local function renew()
  local _, _, reconciled, if_attempt, lease = unpack('>Bc16BI4I8', arg)
  local until_us = now + lease * 1000
  if r.state ~= STARTED and r.state ~= UNKNOWN_STATE or
    if_attempt > 0 and if_attempt ~= r.attempt then
    return say(LOST)
  end
  if reconciled == 1 then
    r.stale = 0
  end
  if r.state == STARTED and until_us > r.lease then
    r.lease = until_us
  end
  return write(OK, bound())
end

local function complete()
  if r.state == COMPLETED then
    return say(OK)
  end
  if r.state == FAILED_STATE then
    return say(LOST)
  end
  local _, _, kept, status, retention, after = unpack('>Bc16BI2I8I8', arg)
  r.state, r.stale, r.kept, r.status = COMPLETED, 0, kept, status
  if retention > 0 then
    r.retention = retention
  end
  return write(OK + OWN, bound(), headers, body, r.retention, after)
end

local function fail()
  if r.state == COMPLETED then
    return say(LOST)
  end
  if r.state == UNKNOWN_STATE then
    return say(OK)
  end
  local _, _, kept, status, ran, as_unknown, died, retention = unpack('>Bc16BI2BBBI8', arg)
  -- The record goes on having its claim's retention, for what a RESOLVE makes of it.
  if retention == 0 then
    retention = r.retention
  end
  -- Nobody knows what the attempt did, and the next one may run all the same.
  local passes_on = died == 1 and r.hold == 0
  if r.state == FAILED_STATE then
    local same = r.ran == ran and (passes_on and r.stale or 1 - as_unknown) == 1 and
      (ran == 0 or r.status == status and r.kept == kept and r.headers_len == #headers and
      sub(r.value, r.bound_end + 1) == headers .. body)
    return say(same and OK or LOST)
  end
  r.ran = ran
  if as_unknown == 1 and not passes_on then
    r.state, r.stale = UNKNOWN_STATE, 1
  else
    r.state, r.spent = FAILED_STATE, r.spent + ran
    if passes_on then
      r.stale = 1
    end
    if ran == 0 then
      return write(OK, bound(), '', '', retention) -- no answer would ever show the outcome
    end
  end
  r.kept, r.status = kept, status
  return write(OK, bound(), headers, body, retention)
end

-- ---- what operators ask -----------------------------------------------------------------

-- Judges a RESOLVE or IMPORT, or any op on a record that cannot be read. To make a function takes
-- time, in each run of the script: so those that are needed seldom are made in here.
local function judge_seldom(kind, exists, trouble)
  local function forget()
    local reply = call('UNLINK', key, grave)
    if type(reply) == 'table' then
      return reply.err
    end
    wrote = true
  end

  local function resolve()
    local _, mark, kept, status, how, force, if_attempt, if_updated, at =
      unpack('>Bc16BI2BBI4I8', arg)
    if not exists then
      return ABSENT, false
    end
    if r.mark == mark then
      return say(OK)
    end
    local _, _, updated = unpack('>I8I8I8', r.value, FENCE_AT)
    if if_attempt > 0 and if_attempt ~= r.attempt or
      if_updated > 0 and if_updated ~= updated then
      return say(LOST)
    end
    if force == 0 and r.state == STARTED and now < r.lease then
      return say(IN_FLIGHT)
    end
    if force == 0 and r.state == COMPLETED then
      return say(DONE)
    end
    if how == FORGET then
      local refusal = forget()
      if refusal then
        return REFUSED, refusal
      end
      return say(OK)
    end
    local by = sub(arg, at)
    local by_whom = sub(r.value, HEAD_SIZE + 1, r.bound_end - r.by_len) .. by
    r.mark, r.fence, r.stale, r.resolved = mark, next_fence(r.fence), 0, now
    r.old_state, r.old_status = r.state, r.status
    r.kept, r.status, r.by_len = kept, status, #by
    if how == RESOLVE_COMPLETE then
      r.state = COMPLETED
      return write(OK + OWN, by_whom, headers, body)
    end
    r.state, r.ran, r.spent = FAILED_STATE, 1, 0
    return write(OK, by_whom, headers, body)
  end

  -- Puts a record as it was in another store. What an earlier import put here follows it, unless it
  -- is completed or has gone on here: each grant and each RESOLVE leaves a mark.
  local function import()
    local value = string.char(VERSION) .. sub(arg, 2) .. headers .. body
    local fence, created, updated = unpack('>I8I8I8', value, FENCE_AT)
    if exists then
      local fence_here, created_here, updated_here = unpack('>I8I8I8', r.value, FENCE_AT)
      if r.mark ~= string.rep('\0', 16) or r.state == COMPLETED or
        r.state == STARTED and now < r.lease or created ~= created_here or fence < fence_here or
        updated <= updated_here then
        local same = created == created_here and updated == updated_here and fence == fence_here
        local code = same and OK or FOUND
        if waits and same then
          code, to_replicate, old_version = code + REPLICATED, place, r.version
        end
        return code, sub(r.value, MARK_END + 1, r.bound_end)
      end
    end
    if read(value, #value) then
      return REFUSED, 'the record to import has a number that Redis cannot keep'
    end
    local _, refusal = put(updated, bound(), headers, body, r.expires,
      r.leaves and updated + r.retention * 1000 or r.expires, false)
    if refusal then
      return REFUSED, refusal
    end
    wrote = true
    return OK + (waits and REPLICATED or 0), sub(value, MARK_END + 1, r.bound_end)
  end

  -- An operator may forget a record that cannot be read: no other op can use it.
  local function unreadable()
    if trouble == CORRUPT and kind == RESOLVE then
      local _, _, _, _, how, force = unpack('>Bc16BI2BBI4', arg)
      if how == FORGET and force == 1 then
        local refusal = forget()
        return refusal and REFUSED or OK + (waits and REPLICATED or 0), refusal or false
      end
    end
    return trouble, false
  end

  if trouble then
    return unreadable()
  end
  if kind == RESOLVE then
    return resolve()
  end
  return import()
end

-- ---- any op -----------------------------------------------------------------------------

local function judge(kind, exists)
  if kind == CLAIM then
    return claim(exists)
  end
  if kind == RESOLVE or kind == IMPORT then
    return judge_seldom(kind, exists)
  end
  if kind == READ or kind == LOOKUP then
    if not exists then
      return ABSENT, false
    end
    if kind == LOOKUP then
      return FOUND, sub(r.value, MARK_END + 1, r.bound_end)
    end
    return say(FOUND)
  end
  if not exists then
    return LOST, false
  end
  if r.mark ~= sub(arg, 2, MARK_END) then
    return say(LOST)
  end
  if kind == COMPLETE then
    return complete()
  end
  if kind == RENEW then
    return renew()
  end
  return fail()
end

-- ---- the batch --------------------------------------------------------------------------

-- Whether the record at the place has a state for which a lookup does not ask: of each state a byte
-- of `arg` says so. Most records of a walk are completed, and need not be read any further.
local function unasked()
  local start = call('GETRANGE', place, '0', STATE_AT)
  if type(start) ~= 'string' or #start <= MARK_END or byte(start) ~= VERSION then
    return false
  end
  return byte(arg, 1 + byte(start, MARK_END + 1)) == 0
end

-- The value at the place and its size. A lookup for LIST leaves the outcome out.
local function value_there(kind)
  if kind ~= LOOKUP then
    local value = call('GET', place)
    return value, type(value) == 'string' and #value
  end
  local value = call('GETRANGE', place, '0', BOUND_AT)
  if value == '' and call('EXISTS', place) == 0 then
    return false
  end
  return value, call('STRLEN', place)
end

-- The record's value and its size, or the tombstone's.
local function fetch(kind)
  place = key
  if kind == LOOKUP and #arg > 1 and unasked() then
    return false
  end
  local value, size = value_there(kind)
  if value then
    return value, size
  end
  if grave == key then
    return value, size
  end
  place = grave
  value, size = value_there(kind)
  if value == '' then -- put() emptied it
    return false
  end
  return value, size
end

local out = {time[1], time[2]}
local left = tonumber(ARGV[1])
local at = 3

for i = 1, #KEYS / 2 do
  local exists, trouble, code, shown = false, nil, nil, nil
  key, grave, arg = KEYS[2 * i - 1], KEYS[2 * i], ARGV[at]
  local kind = byte(arg)
  if kind == COMPLETE or kind == FAIL or kind == RESOLVE or kind == IMPORT then
    headers, body = ARGV[at + 1], ARGV[at + 2]
    at = at + 2
  end
  at = at + 1

  local value, size = fetch(kind)
  if type(value) == 'string' then
    trouble = read(value, size)
    left = left - #value
    if left < 0 and not trouble then
      out[2 * i + 1], out[2 * i + 2] = LATER, tostring(#value)
      break
    end
    exists = r.expires == 0 or now < r.expires
  elseif value then
    shown = value.err
    if string.find(shown, '^WRONGTYPE') then
      trouble = CORRUPT
    else
      code = REFUSED
    end
  end
  if trouble then
    code, shown = judge_seldom(kind, exists, trouble)
  elseif not code then
    code, shown = judge(kind, exists)
  end
  if code == REFUSED and string.find(shown, '^READONLY') then
    return redis.error_reply(shown) -- a replica: nothing was written, and its records may be old
  end
  out[2 * i + 1], out[2 * i + 2] = code, shown
end

-- A script that wrote nothing checks whether it could write: a replica's records may be old. Where
-- replicas must have the writes of other clients, WAIT may count this client's own writes only: so
-- the script makes a write that changes nothing.
if not wrote then
  local touch = call('SETRANGE', to_replicate or KEYS[1], 0,
    to_replicate and string.char(old_version) or '')
  if type(touch) == 'table' and string.find(touch.err, '^READONLY') then
    return redis.error_reply(touch.err)
  end
  if type(touch) == 'table' and to_replicate then
    for i = 3, #out, 2 do
      if out[i] >= REPLICATED then
        out[i], out[i + 1] = REFUSED, touch.err
      end
    end
  end
end
return out
