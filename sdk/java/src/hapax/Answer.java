// SPDX-License-Identifier: Apache-2.0
package hapax;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
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
        List<String[]> out = new ArrayList<>();
        if (members.get("headers") instanceof List<?> list)
            for (Object pair : list)
                if (pair instanceof List<?> two && two.size() == 2)
                    out.add(new String[] {string(two.get(0)), string(two.get(1))});
        return out;
    }

    private static String string(Object text) { // as HTTP has it: a byte, a character
        return new String(Frame.bytes(text), StandardCharsets.ISO_8859_1);
    }
}
