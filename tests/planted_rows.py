# SPDX-License-Identifier: Apache-2.0
"""The mistakes of tests/planted.py: a name, a file, its text, the text with the mistake, and the test that must fail.

`TABLE…TEXT` is the text behind TABLE, to the end of that function. A test is one of meson's by its name, or one of
pytest's by its file and case, and `make test` must have it: the quickest one that says why the line is there.
"""

LUA, SQL, WALKS = "lua/machine.lua", "sql/110_run.sql", "sql/120_walks.sql"
OWN_SQL, OUTBOX, IDS = "sql/130_transaction.sql", "sql/150_outbox.sql", "sql/100_ids.sql"
DDB, ITEM = "src/store/dynamodb/op.c", "src/store/dynamodb/item.c"
HYBRID, HINT = "src/store/hybrid/store.c", "src/store/hybrid/value.c"
LINK, REQUEST = "src/store/keeper/link.c", "src/store/keeper/request.c"
FRAME, CONNECTION = "src/store/keeper/frame.c", "src/store/keeper/connection.c"
DECIDE, DELIVERIES = "src/door/consume/decide.c", "src/door/consume/deliveries.c"
ASK, INHAND = "src/door/ask.c", "src/door/consume/inhand.c"
OP, META, TICKET = "src/door/socket/op.c", "src/door/socket/meta.c", "src/door/socket/ticket.c"
SERVER = "src/door/socket/server.c"
RELAY = "src/relay/relay.c"
IDENTIFY, NGX_REQUEST = "nginx/ngx_http_hapax_identify.c", "nginx/ngx_http_hapax_request.c"
OUTCOME, FILTER = "nginx/ngx_http_hapax_outcome.c", "nginx/ngx_http_hapax_filter.c"
ANSWER, TELL = "nginx/ngx_http_hapax_answer.c", "nginx/ngx_http_hapax_tell.c"


def sql(case):
    return f"tests/store/test_sql.py::test_{case}"


def outbox(case):
    return f"tests/store/test_outbox_sql.py::test_{case}"


def ddb(case):
    return f"tests/store/test_dynamodb.py::test_{case}"


def door(case):
    return f"tests/e2e/door/test_door.py::test_{case}"


def kill(case):
    return f"tests/e2e/door/test_door_kill.py::test_{case}"


def relay(case):
    return f"tests/e2e/relay/test_relay.py::test_{case}"


def gate(case, file="test_gate"):
    return f"tests/e2e/gate/{file}.py::test_{case}"


MISTAKES = [
    # ---- Lua, in Redis
    ("lua_token_not_compared", LUA,
     "  if r.mark ~= sub(arg, 2, MARK_END) then",
     "  if false then",
     "store redis"),
    ("lua_live_claim_is_taken", LUA,
     "  if state == STARTED and now < r.lease then",
     "  if false then",
     "store redis"),
    ("lua_dead_claim_under_hold_is_taken", LUA,
     "    if holds then\n"
     "      return to_unknown(old)",
     "    if false then\n"
     "      return to_unknown(old)",
     "store redis"),
    ("lua_fence_stays", LUA,
     "  return previous + 1 > now and previous + 1 or now",
     "  return previous",
     "store redis"),
    ("lua_completed_twice", LUA,
     "  if r.state == COMPLETED then\n"
     "    return say(OK)\n"
     "  end\n",
     "",
     "store redis"),
    ("lua_another_request_is_answered", LUA,
     "    if differs and not unbound() then",
     "    if false then",
     "store redis"),
    ("lua_refusal_is_kept", LUA,
     "  if unbound() and (kept == 0 or kept > REFUSED_KEPT) then",
     "  if false then",
     "store redis"),
    ("lua_unknown_expires", LUA,
     "  if kept > 0 and r.state ~= UNKNOWN_STATE and",
     "  if kept > 0 and",
     "store redis"),
    ("lua_unanswered_expires", LUA,
     " or r.state == FAILED_STATE and r.stale == 1)\n",
     ")\n",
     "store redis"),
    ("sql_unanswered_expires", "sql/110_run.sql",
     "                        OR l.code = 109 AND l.hold AND l.stale\n",
     "",
     "store postgres"),
    ("lua_live_claim_is_resolved", LUA,
     "    if force == 0 and r.state == STARTED and now < r.lease then",
     "    if false then",
     "store redis"),
    ("lua_import_over_a_live_claim", LUA,
     "        r.state == STARTED and now < r.lease or created ~= created_here or",
     "        created ~= created_here or",
     "store redis"),
    ("lua_renewal_shortens", LUA,
     "  if r.state == STARTED and until_us > r.lease then",
     "  if r.state == STARTED then",
     "store redis"),
    ("lua_other_size_is_a_record", LUA,
     "  if size ~= bound_end + headers_len + body_len or state < STARTED",
     "  if state < STARTED",
     "redis"),

    # ---- SQL, in PostgreSQL
    ("sql_token_not_compared", SQL,
     "                                WHEN r.token <> hapax.mark_of(p_token[g.i]) THEN 8\n",
     "",
     sql("a_zombie_cannot_commit")),
    ("sql_live_claim_is_taken", SQL,
     "                                    WHEN c.now < r.lease_until_us THEN 2\n",
     "",
     "store postgres"),
    ("sql_judged_record_not_compared", SQL,
     " FROM judged j WHERE o.ctid = j.row_ctid AND o.xmin = j.row_xmin",
     " FROM judged j WHERE o.id = p_id[j.i]",
     sql("a_row_that_was_rewritten_is_judged_again")),
    ("sql_fence_stays", SQL,
     "THEN greatest(l.fence + 1, l.now)",
     "THEN l.fence",
     "store postgres"),
    ("sql_dead_claim_under_hold_is_taken", SQL,
     "                                    WHEN r.hold OR p_flags[g.i] & 3 = 2 THEN 105\n"
     "                                    WHEN p_limit",
     "                                    WHEN p_limit",
     "store postgres"),
    ("sql_another_caller_is_answered", SQL,
     "AND r.fingerprint = p_fingerprint[g.i] AND r.caller = p_caller[g.i]\n"
     "                AND NOT",
     "AND r.fingerprint = p_fingerprint[g.i]\n"
     "                AND NOT",
     "store postgres"),
    ("sql_made_up_token_completes", SQL,
     "AND o.token = hapax.mark_of(p_token[g.i])\n",
     "\n",
     "store postgres"),
    ("sql_door_sees_all", SQL,
     "THEN CASE WHEN l.live AND NOT (l.other AND l.code IN (8, 99))",
     "THEN CASE WHEN l.live",
     "tests/store/test_sql_rights.py::test_a_door_reads_no_operation_but_by_its_request"),
    ("sql_door_resolves", SQL,
     "    IF c_door AND 8 = ANY (p_kind) THEN",
     "    IF false THEN",
     "tests/store/test_sql_rights.py::test_a_door_reads_no_operation_but_by_its_request"),
    ("sql_sweep_takes_a_claim", WALKS,
     "    WHERE o.id = ANY (v_ids) AND o.expires_us <> 0 AND v_now >= o.expires_us\n"
     "        AND CASE",
     "    WHERE o.id = ANY (v_ids)\n"
     "        AND CASE",
     sql("a_sweep_makes_dead_claims_under_hold_unknown")),
    ("sql_sweep_ends_a_renewed_claim", WALKS,
     "                OR o.state = 1 AND v_now < o.lease_until_us\n",
     "",
     sql("a_sweep_never_takes_a_renewed_claim")),
    ("sql_another_secret_is_taken", OWN_SQL,
     "    IF v_found IS DISTINCT FROM v_check THEN",
     "    IF false THEN",
     sql("another_secret_is_refused")),
    ("sql_short_way_answers_others", OWN_SQL,
     "o.fingerprint = fingerprint AND o.caller = caller\n"
     "            AND CASE",
     "o.fingerprint = fingerprint\n"
     "            AND CASE",
     sql("the_short_way_is_the_tables")),
    ("sql_headers_are_not_read", OWN_SQL,
     "    IF p_headers IS NULL OR hapax.good_headers(p_headers) THEN",
     "    IF true THEN",
     sql("headers_that_are_none_are_refused")),
    ("sql_tombstone_is_replayed", OWN_SQL,
     "            AND v.verdict = 'completed' THEN",
     "            AND false THEN",
     sql("a_tombstone_is_expired_to_begin")),

    # ---- DynamoDB
    ("ddb_put_without_a_condition", ITEM,
     "    hapax__json_put(out, \"}\");\n"
     "    put_condition(out, v);\n"
     "}\n"
     "\n"
     "void hapax__ddb_ask_get(",
     "    hapax__json_put(out, \"}}\");\n"
     "    (void)v;\n"
     "}\n"
     "\n"
     "void hapax__ddb_ask_get(",
     "dynamodb"),
    ("ddb_chunks_are_not_summed", ITEM,
     "    return body.len == chunks->len && chunks->sum == sum_of(chunks, id, body);",
     "    return body.len == chunks->len;",
     "dynamodb"),
    ("ddb_sum_without_its_id", ITEM,
     "    memcpy(of, id->bytes, sizeof(id->bytes));",
     "    memset(of, 0, sizeof(of));",
     "dynamodb"),
    ("ddb_item_without_a_version", ITEM,
     "    if (seen == HAPAX__DDB_FOUND && (out->r.len == 0 || !out->has_v))",
     "    if (seen == HAPAX__DDB_FOUND && out->r.len == 0)",
     "dynamodb"),
    ("ddb_old_reads", ITEM,
     "void hapax__ddb_ask_scan(…\\\"ConsistentRead\\\":true,",
     "",
     "dynamodb"),
    ("ddb_margin_is_not_added", DDB,
     "        judged->lease_ms += skew_ms;",
     "        (void)skew_ms;",
     ddb("a_lease_lasts_for_the_skew_margin")),
    ("ddb_margin_is_shown", DDB,
     "        op->record.lease_until_us -= work->ddb->uri.skew_ms * US_PER_MS;",
     "        ;",
     ddb("the_margin_is_for_others_and_stays_on_renewal")),
    ("ddb_lost_reply_is_surely_undone", DDB,
     "    work->maybe |= call->unsure;",
     "    ;",
     ddb("a_repeat_that_is_refused_leaves_the_op_indeterminate")),
    ("ddb_memory_is_the_answer", DDB,
     "    } else if (work->guess) {",
     "    } else if (false) {",
     ddb("what_a_handle_remembers_is_never_the_answer")),
    ("ddb_chunks_stay", DDB,
     "    if (work->exists && !same_set(&work->item.chunks, &work->put.chunks))\n"
     "        sweep_later(work, &work->item.chunks);\n",
     "",
     ddb("chunks_go_with_their_record")),

    # ---- hybrid
    ("hybrid_lock_of_another_request", HYBRID,
     "    if (!lookup->locked || !h->known.clock || !same_request(op, record))",
     "    if (!lookup->locked || !h->known.clock)",
     "hybrid"),
    ("hybrid_copy_of_another_request", HYBRID,
     "    return lookup->copied && same_request(op, record) &&",
     "    return lookup->copied &&",
     "hybrid"),
    ("hybrid_epoch_not_compared", HYBRID,
     "                   lookup->copy.epoch != h->known.epoch))",
     "                   false))",
     "hybrid"),
    ("hybrid_copy_outlives_its_retention", HYBRID,
     "           (record->expires_us == 0 || now_us + COPY_MARGIN_US < hapax__shown_until(record));",
     "           now_us >= 0;",
     "hybrid"),
    ("hybrid_lock_of_the_dead", HYBRID,
     "    if (high_us >= record->lease_until_us)\n"
     "        return false;\n",
     "    (void)high_us;\n",
     "hybrid"),
    ("hybrid_lock_for_ever", HYBRID,
     "        if (record->lease_until_us - low_us > BARE_MAX_US)\n"
     "            return false;\n",
     "",
     "hybrid"),
    ("hybrid_lock_stays", HYBRID,
     "    return left_lock(h, op, i) ? HAPAX__REFRESH_DROP : 0;\n"
     "}\n"
     "\n"
     "/* Counts",
     "    return 0;\n"
     "}\n"
     "\n"
     "/* Counts",
     "hybrid"),
    ("hybrid_seal_not_compared", HINT,
     "    return CRYPTO_memcmp(value.ptr + HAPAX__HINT_RANK, seal.bytes, sizeof(seal.bytes)) == 0;",
     "    return true;",
     "hybrid"),
    ("hybrid_lower_fence_wins", "lua/hybrid_refresh.lua",
     "string.sub(there, 1, 41) <= string.sub(value, 1, 41)",
     "true",
     "hybrid"),

    # ---- keeper
    ("keeper_forget_is_repeated", LINK,
     "        if (group->sent)\n"
     "            leave_out(link, group, no_repeat);\n",
     "",
     "keeper_losses"),
    ("keeper_repeat_is_surely_undone", LINK,
     "    if (repeated && op->error != HAPAX_ERR_CORRUPT)",
     "    if (false)",
     "keeper_losses"),
    ("keeper_sent_is_surely_undone", LINK,
     "            if (!group->sent && STAILQ_FIRST(&group->askings)->op)",
     "            if (STAILQ_FIRST(&group->askings)->op)",
     "keeper_losses"),
    ("keeper_groups_overtake", LINK,
     "        if (group->in_frame - group->place < group->count)\n"
     "            break;\n",
     "",
     "keeper_pipeline"),
    ("keeper_answers_of_two_groups", LINK,
     "    while (result == WELL && link->fd >= 0 && link->groups == groups) {",
     "    while (result == WELL && link->fd >= 0) {",
     "keeper_pipeline"),
    ("keeper_newer_is_surely_undone", LINK,
     "group->sent ? HAPAX_ERR_INDETERMINATE : HAPAX_ERR_UNSUPPORTED;",
     "HAPAX_ERR_UNSUPPORTED;",
     "keeper_pipeline"),
    ("keeper_newer_is_sent", LINK,
     "        result = leave_out_newer(link, group);\n",
     "        result = WELL;\n",
     "keeper_pipeline"),
    ("keeper_older_is_gone_unseen", LINK,
     "    if (closed(link))\n",
     "    if (false)\n",
     "keeper_pipeline"),
    ("keeper_claim_forgets_its_end", FRAME,
     "        newer = op->says_kept;\n",
     "        newer = false;\n",
     "keeper_pipeline"),
    ("keeper_older_client_is_left", CONNECTION,
     "        welcome.version = hello.version;\n",
     "        (void)hello;\n",
     "keeper_peers"),
    ("keeper_door_resolves", REQUEST,
     "           op->kind != HAPAX_OP_RESOLVE && op->kind != HAPAX_OP_IMPORT;",
     "           op->kind != HAPAX_OP_IMPORT;",
     "keeper_socket"),
    ("keeper_door_sees_all", REQUEST,
     "        if (c->door)\n"
     "            conceal(op);\n",
     "",
     "keeper_socket"),
    ("keeper_unknown_flags_pass", FRAME,
     "    r->bad |= (flags & ~known) != 0;\n",
     "",
     "frame"),
    ("keeper_times_change_places", FRAME,
     "    hapax__put_number(w, (uint64_t)op->lease_ms, 8);\n"
     "    hapax__put_number(w, (uint64_t)op->retention_ms, 8);",
     "    hapax__put_number(w, (uint64_t)op->retention_ms, 8);\n"
     "    hapax__put_number(w, (uint64_t)op->lease_ms, 8);",
     "frame"),
    ("keeper_rest_of_a_request_is_dropped", CONNECTION,
     "    if (r.left > 0) {\n"
     "        fault(c, HAPAX_ERR_INVALID, \"a request has bytes behind its last op\");\n"
     "        return;\n"
     "    }\n",
     "",
     "keeper_peers"),
    ("keeper_half_a_frame_is_waited_for", CONNECTION,
     "(hapax__connection_reads(c) && c->in_len > 0) || has_output(c);",
     "has_output(c);",
     "keeper_peers"),

    # ---- nginx
    ("nginx_an_api_key_is_nobody", IDENTIFY,
     "    ngx_string(\"x-api-key\"),\n",
     "",
     gate("every_credential_tells_callers_apart", "test_gate_more")),
    ("nginx_credentials_without_their_names", IDENTIFY,
     "        if (ngx_http_hapax_put_part(parts, name->data, name->len) != NGX_OK\n"
     "            || ngx_http",
     "        if (ngx_http",
     gate("a_credential_is_not_another_one", "test_gate_more")),
    ("nginx_long_bodies_are_alike", IDENTIFY,
     "max_request) {\n"
     "\n"
     "            if (!ctx->shadow) {",
     "max_request\n"
     "            || ctx->received > 65536)\n"
     "        {\n"
     "            if (!ctx->shadow) {",
     gate("a_large_body_counts_to_its_last_byte")),
    ("nginx_an_owner_is_no_part_of_the_key", IDENTIFY,
     "    whose.len = owner.len;",
     "    whose.len = 0;",
     gate("an_owner_has_keys_of_its_own", "test_gate_more")),
    ("nginx_cookies_are_replayed", OUTCOME,
     "            return ngx_http_hapax_in(conf->keep, name);",
     "            return 1;",
     gate("headers_that_are_never_replayed", "test_gate_more")),
    ("nginx_what_is_no_line_is_replayed", OUTCOME,
     "        if (value->data[i] == '\\0' || value->data[i] == CR) {",
     "        if (0) {",
     gate("a_stored_line_that_is_no_header_is_left_out", "test_gate_more")),
    ("nginx_a_cut_response_is_final", FILTER,
     "    return ngx_http_hapax_end(r, ctx, 1, HAPAX_CLASS_UNKNOWN);",
     "    return ngx_http_hapax_end(r, ctx, 1, HAPAX_CLASS_FINAL);",
     gate("a_truncated_response_says_so")),
    ("nginx_forged_headers_pass", NGX_REQUEST,
     "    if (ngx_http_hapax_strip(r, 0) != NGX_OK) {",
     "    if (0) {",
     gate("headers_of_the_gate_are_stripped_from_other_methods")),
    ("nginx_two_keys_are_the_first", NGX_REQUEST,
     "    if (n > 1) {",
     "    if (0) {",
     gate("a_repeated_key_is_400")),
    ("nginx_a_replay_is_200", ANSWER,
     "? (ngx_uint_t) outcome->status : NGX_HTTP_OK;",
     "? NGX_HTTP_OK : NGX_HTTP_OK;",
     gate("a_final_error_is_replayed")),
    ("nginx_a_broker_drops_what_is_in_flight", TELL,
     "    case HAPAX_ANSWER_IN_FLIGHT:\n"
     "    case HAPAX_ANSWER_UNKNOWN:",
     "    case HAPAX_ANSWER_UNKNOWN:",
     gate("in_flight_is_retried_until_the_first_has_ended", "test_gate_push")),

    # ---- consumer
    ("consumer_unrecorded_is_acknowledged", DECIDE,
     "        if (r->ended->cls != HAPAX_CLASS_UNKNOWN && !r->ended->recorded)",
     "        if (false)",
     "consumer_decide"),
    ("consumer_unknown_is_tried_again", DECIDE,
     "    if (is_unknown_now(r, hapax__on_failed(&r->consumer->policy) == HAPAX_FAILED_HOLD))",
     "    if (false)",
     "consumer_decide"),
    ("consumer_one_attempt_more", DECIDE,
     "r->consumer->policy.attempts_max > 0 && spent >= r->",
     "r->consumer->policy.attempts_max > 0 && spent > r->",
     "consumer_decide"),
    ("consumer_pause_without_a_limit", DECIDE,
     "    told_ms = hapax__least(told_ms, r->consumer->retry_max_ms);\n",
     "",
     "consumer_decide"),
    ("consumer_damaged_is_asked_again", DECIDE,
     "    if (r->ended->error == HAPAX_ERR_CORRUPT)\n"
     "        return set_aside(r, HAPAX__REASON_CORRUPT);\n",
     "",
     "consumer_decide"),
    ("consumer_refused_letter_is_acknowledged", DELIVERIES,
     "    if (sent == HAPAX__SENT_OK) {",
     "    if (sent != HAPAX__SENT_LOST) {",
     "consumer"),
    ("consumer_order_is_lost_behind_what_goes_back", DELIVERIES,
     "    bool back = how == HAPAX__RELEASE_RETURN && keeps_order;",
     "    bool back = false;",
     "consumer_postpone"),
    ("consumer_duplicates_sleep", DELIVERIES,
     "    while (operation > 0 && (entry = hapax__inhand_duplicate_of(",
     "    while (false && (entry = hapax__inhand_duplicate_of(",
     "consumer_deliveries"),
    ("consumer_nobody_stands_in_line", INHAND,
     "    if (entry->delivered->order.len > 0)\n"
     "        line_up(inhand, entry);\n",
     "",
     "consumer"),
    ("consumer_a_bad_key_is_passed_over", ASK,
     "HAPAX_ERR_NONE ? HAPAX__FOUND\n"
     "                                                                              : HAPAX__FOUND_BAD;",
     "HAPAX_ERR_NONE ? HAPAX__FOUND\n"
     " : HAPAX__FOUND_NOTHING;",
     "consume_ask"),
    ("consumer_a_missing_owner_is_nobody", ASK,
     "    if (found == HAPAX__FOUND_NOTHING)\n"
     "        found = hapax__found_bad(view, \"its pointer finds nothing\");\n",
     "",
     "consume_ask"),

    # ---- relay
    ("outbox_number_before_the_lock", OUTBOX,
     "    PERFORM pg_advisory_xact_lock(v_hash);\n",
     "",
     outbox("writers_of_one_aggregate_take_turns")),
    ("outbox_key_without_its_step", OUTBOX,
     "    v_key := CASE WHEN step IS NULL THEN key ELSE hapax.key_derive(key, step) END;",
     "    v_key := key;",
     outbox("its_key_is_derived_by_the_one_rule")),
    ("outbox_takes_what_is_not_due", OUTBOX,
     "                AND (head.due_us <= v_now OR head.due_us > v_far)\n",
     "",
     outbox("a_failed_one_holds_back_its_aggregate_and_no_other")),
    ("outbox_passes_over_the_floor", OUTBOX,
     " AND o.part = ANY (p_parts) AND head.seq > p_floor",
     " AND o.part = ANY (p_parts)",
     outbox("one_that_commits_late_under_the_floor_holds_back_what_follows_it")),
    ("outbox_other_parts_too", OUTBOX,
     " AND o.part = ANY (p_parts) AND head.seq",
     " AND head.seq",
     outbox("only_rows_of_the_parts_are_taken_up_to_the_limit")),
    ("outbox_ended_begins_anew", OUTBOX,
     "        WHERE o.seq = ANY (v_failed) AND o.state = 0;",
     "        WHERE o.seq = ANY (v_failed);",
     outbox("what_has_ended_stays_so")),
    ("outbox_two_relays_have_a_part", OUTBOX,
     "        WHERE p.relay = p_relay OR p.relay IS NULL OR p.until_us <= v_now OR p.until_us > v_far\n",
     "",
     outbox("relays_share_the_parts_and_no_part_has_two")),
    ("outbox_nobody_is_called", OUTBOX,
     "    PERFORM pg_notify('hapax_outbox', '');\n"
     "    RETURN v_seq;",
     "    RETURN v_seq;",
     outbox("a_listener_is_woken")),
    ("outbox_sweeps_what_is_young", OUTBOX,
     "FILTER (WHERE w.state = 1 AND w.ended_us <= v_before)",
     "FILTER (WHERE w.state = 1)",
     outbox("lag_and_sweep")),
    ("relay_goes_on_behind_a_refused_one", RELAY,
     "        end_item(r, item, LEFT);\n"
     "}\n"
     "\n"
     "static void reap",
     "        end_item(r, item, PUBLISHED);\n"
     "}\n"
     "\n"
     "static void reap",
     relay("a_refused_one_holds_back_its_aggregate_alone_and_goes_aside")),
    ("relay_key_is_left_out", RELAY,
     "    item->letter.own_count = 1;\n",
     "",
     relay("what_was_committed_is_published_with_its_key")),
    ("relay_keeps_its_parts_at_the_end", RELAY,
     "    (void)hapax__outbox_lease(&r->outbox, 0, r->parts, &r->part_count);\n",
     "",
     relay("sigterm_gives_its_parts_to_the_next_at_once")),

    # ---- door
    ("door_a_number_is_taken_twice", OP,
     "    if (find(c, frame->op))\n"
     "        return refuse(",
     "    if (false)\n"
     "        return refuse(",
     door("a_number_in_hand_is_not_taken_twice")),
    ("door_a_bad_end_is_final", OP,
     "    enum hapax_class cls = HAPAX_CLASS_UNKNOWN;\n"
     "    char text[HAPAX_TEXT_MAX];\n"
     "    enum hapax_error error;\n"
     "\n"
     "    if (is_resuming(op))",
     "    enum hapax_class cls = HAPAX_CLASS_FINAL;\n"
     "    char text[HAPAX_TEXT_MAX];\n"
     "    enum hapax_error error;\n"
     "\n"
     "    if (is_resuming(op))",
     door("an_end_that_is_none_ends_as_unknown")),
    ("door_an_empty_owner_is_anybody", OP,
     "op->request.key.len > 0 && hapax__door_request_is_unowned(&meta)) {",
     "op->request.key.len > 0 && false) {",
     door("who_is_named_and_empty_is_nobody")),
    ("door_a_failed_message_is_done", OP,
     "    if (op->as == HAPAX__AS_MESSAGE && cls == HAPAX_CLASS_FINAL && meta->status / 100 != 2)\n"
     "        return HAPAX_CLASS_FAILED;\n",
     "",
     door("messages_are_told_what_becomes_of_them")),
    ("door_a_nonce_is_claimed_twice", OP,
     "        op->call->shared = hapax__nonces_add(&door->nonces, &nonce);\n",
     "        (void)hapax__nonces_add(&door->nonces, &nonce), op->call->shared = true;\n",
     kill("a_nonce_that_this_door_knows_is_no_claim_of_its_own")),
    ("door_an_end_gives_back_what_is_granted", SERVER,
     "    if (!door->options.last)\n        hapax__claims_leave(door->options.h);\n",
     "",
     kill("a_door_that_ends_leaves_a_claim_to_its_client")),
    ("door_what_waits_is_sent_after_the_end", "src/lane/lane.c",
     "        if (job->unless && atomic_load(job->unless))\n",
     "        if (false)\n",
     "lane"),
    ("door_what_is_resumed_is_given_back", OP,
     "        atomic_store(&op->call->left, true);\n",
     "",
     kill("the_end_of_a_connection_leaves_a_resumed_hook_alone")),
    ("door_a_death_is_not_told", OP,
     "            op->died = died;\n",
     "",
     kill("with_now_a_killed_handler_is_followed_at_once")),
    ("door_who_lost_is_not_told", OP,
     "    if (op->phase != HAPAX__OP_RUNNING || op->silent || op->told_lost)",
     "    if (op)",
     kill("a_stopped_client_loses_its_claim")),
    ("door_an_end_leaves_steps_waiting", OP,
     "        if (step->outer == op && !step->resumed) /* a resumed step runs */\n"
     "            give_up(step);",
     "        if (false)\n"
     "            give_up(step);",
     door("the_end_gives_up_a_step_that_waits")),
    ("door_an_end_cuts_off_a_resumed_step", OP,
     "        if (step->outer == op && !step->resumed)",
     "        if (step->outer == op)",
     kill("a_resumed_step_outlives_the_end_of_its_operation")),
    ("door_a_ticket_with_a_rest", TICKET,
     "    if (r.bad || r.left > 0 || t->request",
     "    if (r.bad || t->request",
     kill("a_ticket_with_a_rest_is_refused")),
    ("door_a_line_in_a_header", META,
     "        if (!hapax__line_is_whole(line->name, line->value))\n"
     "            return refuse(r, \"has a name or a value that cannot stand in a line\");\n",
     "",
     door("an_end_that_is_none_ends_as_unknown")),
    ("door_a_profile_wins_over_what_stands_beside", META,
     "        if (!hapax__raw_says(name, \"profile\") && !hapax__raw_is_null(value))\n",
     "        if (!hapax__raw_is_null(value))\n",
     door("policies_come_from_line_file_and_begin")),
]
