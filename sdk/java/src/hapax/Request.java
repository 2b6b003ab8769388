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
    byte[] body = {};
    Reconciler<?> reconciler;

    public Request() {
        byte[] nonce = new byte[16];
        RANDOM.nextBytes(nonce);
        members.put("nonce", HexFormat.of().formatHex(nonce));
    }

    /** Sets a member: a text, a number, a boolean, a list, or a map. A byte[] in any of them is written as TEXT. */
    public Request set(String member, Object value) {
        members.put(member, plain(value));
        return this;
    }

    /** Sets the body: what the fingerprint is made of. */
    public Request body(byte[] bytes) {
        body = bytes;
        return this;
    }

    Request policy(String name, Object value) {
        @SuppressWarnings("unchecked")
        Map<String, Object> policy = (Map<String, Object>) members.computeIfAbsent("policy", none -> new HashMap<>());
        policy.put(name, value);
        return this;
    }

    private static Object plain(Object value) {
        if (value instanceof byte[] bytes)
            return Frame.text(bytes);
        if (value instanceof Map<?, ?> map) {
            Map<Object, Object> out = new LinkedHashMap<>();
            map.forEach((name, inner) -> out.put(name, plain(inner)));
            return out;
        }
        return value instanceof List<?> list ? list.stream().map(Request::plain).toList() : value;
    }

    /** The members of RESUME. */
    Map<String, Object> resumed(String ticket) {
        Map<String, Object> out = new HashMap<>();
        out.put("ticket", ticket);
        for (String name : List.of("in", "reconciles", "as", "request", "message"))
            if (members.containsKey(name))
                out.put(name, members.get(name));
        return out;
    }
}
