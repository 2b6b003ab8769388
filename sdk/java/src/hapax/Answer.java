// SPDX-License-Identifier: Apache-2.0
package hapax;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/** The door's last word about an operation: the members of ANSWER (docs/door.md). */
public final class Answer {
    private final Map<String, Object> members;
    private final byte[] body;

    Answer(Map<String, Object> members, byte[] body) {
        this.members = members;
        this.body = body;
    }

    String text(String name) {
        return members.get(name) instanceof String text ? text : "";
    }

    long number(String name) {
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

    /** The outcome is stored. */
    public boolean recorded() {
        return members.get("recorded") == Boolean.TRUE;
    }

    /** It ran without the store. */
    public boolean unprotected() {
        return members.get("unprotected") == Boolean.TRUE;
    }

    /** How this attempt ended: "final", "failed", …; "" where it did not run. */
    public String handlerClass() {
        return text("class");
    }

    /** Of the outcome, where {@link #own} is false. */
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

    /** As status. */
    public byte[] body() {
        return body;
    }

    String bodyText() {
        return new String(body, StandardCharsets.UTF_8);
    }

    /** When to ask again; empty where time does not help. */
    public Optional<Duration> retryAfter() {
        return members.get("retry_after_ms") instanceof Number ms ? Optional.of(Duration.ofMillis(ms.longValue()))
                : Optional.empty();
    }

    /** MISMATCH: "fingerprint" or "caller". */
    public String differs() {
        return text("differs");
    }

    /** The attempt of the record, counted from 1. */
    public long attempt() {
        return number("attempt");
    }

    /** The fence of that attempt. */
    public long fence() {
        return number("fence");
    }

    /** Why the store failed: "unavailable", …; "" where it did not. */
    public String error() {
        return text("error");
    }

    /** A line for people. */
    public String text() {
        return text("text");
    }

    /** Every member, as it came. */
    public Map<String, Object> members() {
        return members;
    }
}
