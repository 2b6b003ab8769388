// SPDX-License-Identifier: Apache-2.0
package hapax;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Optional;

/**
 * An answer that gives no result, or what the door says of a request that it refuses. The handler did not run, or ran
 * and lost its claim to another attempt. {@link #answer} says which:
 * <ul>
 * <li>"in_flight": another attempt runs. Ask again, with the same key.
 * <li>"unknown": an earlier attempt's result is not known; nothing ran.
 * <li>"mismatch": the key was used for another request, or by another caller ({@link #differs}).
 * <li>"store_down": the store, or the door, cannot be reached, ends, or has no room; nothing ran.
 * <li>"indeterminate": the door is gone, does not know the attempt any more, or had no room for its END. The handler
 * ran, and whether its outcome is stored is not known. Ask again.
 * <li>"expired": the key's time is over (policies tombstone, key_expires); nothing ran now.
 * <li>"failed", "gone", "missing_owner", …: as in docs/door.md; "invalid": a request that is none.
 * </ul>
 */
public final class HapaxException extends RuntimeException {
    private static final long serialVersionUID = 1;
    private final String answer;
    private final transient Answer whole; // null: the door did not answer

    HapaxException(String answer, String text, Answer whole) {
        super("hapax: " + answer + (text == null || text.isEmpty() ? "" : ": " + text));
        this.answer = answer;
        this.whole = whole;
    }

    static HapaxException of(Answer answer) {
        String text = answer.text("text");
        if (text.isEmpty() && answer.status() >= 400)
            text = new String(answer.body(), StandardCharsets.UTF_8);
        if (!answer.text("differs").isEmpty())
            text = "another " + answer.text("differs") + (text.isEmpty() ? "" : ": " + text);
        // under on_failed=replay
        return new HapaxException(answer.answer().equals("replay") ? "failed" : answer.answer(), text, answer);
    }

    public String answer() {
        return answer;
    }

    /** When to ask again; empty where time does not help. */
    public Optional<Duration> retryAfter() {
        boolean helps = whole != null && whole.members().get("retry_after_ms") instanceof Number;
        return helps ? Optional.of(Duration.ofMillis(whole.number("retry_after_ms"))) : Optional.empty();
    }

    /** Of "mismatch": "fingerprint" or "caller"; otherwise "". */
    public String differs() {
        return whole == null ? "" : whole.text("differs");
    }
}
