// SPDX-License-Identifier: Apache-2.0
package hapax;

import java.security.SecureRandom;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** What is asked for: the members of BEGIN (docs/door.md), and its body. For adapters; {@link Options} are for programs. */
public final class Request {
    private static final SecureRandom RANDOM = new SecureRandom();

    final Map<String, Object> members = new LinkedHashMap<>();
    private final Map<String, Object> policy = new HashMap<>();
    byte[] body = {};
    Reconciler<?> reconciler;

    public Request() {
        byte[] nonce = new byte[16];
        RANDOM.nextBytes(nonce);
        members.put("nonce", HexFormat.of().formatHex(nonce));
    }

    /** Sets a member: a text, a number, a boolean, a list, or a map; or a byte[], which is written as TEXT. */
    public Request set(String member, Object value) {
        members.put(member, value instanceof byte[] bytes ? Frame.text(bytes) : value);
        return this;
    }

    /** Bytes as TEXT, where they stand in a list or a map. */
    public static Object text(byte[] bytes) {
        return Frame.text(bytes);
    }

    /** Sets the body: what the fingerprint is made of. */
    public Request body(byte[] bytes) {
        body = bytes;
        return this;
    }

    Request policy(String name, Object value) {
        policy.put(name, value);
        return set("policy", policy);
    }

    /** The members of RESUME. */
    Map<String, Object> resumed(String ticket) {
        Map<String, Object> out = new HashMap<>(members);
        out.keySet().retainAll(List.of("in", "reconciles", "as", "request", "message"));
        out.put("ticket", ticket);
        return out;
    }
}
