// SPDX-License-Identifier: Apache-2.0
package hapax;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;

/**
 * The door's last word about an operation. For adapters.
 *
 * @param members those of ANSWER (docs/door.md)
 * @param body of the outcome, where {@link #own} is false
 */
public record Answer(Map<String, Object> members, byte[] body) {
    /** A member that is a text; "" where it is none. */
    public String text(String name) {
        return members.get(name) instanceof String text ? text : "";
    }

    /** A member that is a number; 0 where it is none. */
    public long number(String name) {
        return members.get(name) instanceof Number number ? number.longValue() : 0;
    }

    /** "fresh", "replay", "in_flight", … */
    public String answer() {
        return text("answer");
    }

    /** The outcome is what this attempt gave. */
    public boolean own() {
        return members.get("own") == Boolean.TRUE;
    }

    /** Of the outcome, as the body. */
    public int status() {
        return (int) number("status");
    }

    /** As status: pairs of a name and a value. */
    public List<String[]> headers() {
        List<?> pairs = members.get("headers") instanceof List<?> list ? list : List.of();
        return pairs.stream().map(pair -> ((List<?>) pair).stream()
                .map(text -> new String(Frame.bytes(text), StandardCharsets.ISO_8859_1)) // as HTTP has it: a byte, a character
                .toArray(String[]::new)).toList();
    }
}
