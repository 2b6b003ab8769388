// SPDX-License-Identifier: Apache-2.0
package hapax;

import java.time.Duration;
import java.util.Optional;

/**
 * An answer that gives no result, or what the door says of a request that it refuses. The handler did not run, or ran
 * and lost its claim to another attempt.
 */
public class HapaxException extends RuntimeException {
    private static final long serialVersionUID = 1;
    private final String answer;
    private final transient Answer whole;

    HapaxException(String answer, String text, Answer whole) {
        super("hapax: " + answer + (text == null || text.isEmpty() ? "" : ": " + text));
        this.answer = answer;
        this.whole = whole;
    }

    /** The answer: "in_flight", "failed", "gone", …; or the error, "invalid". */
    public String answer() {
        return answer;
    }

    /** When to ask again; empty where time does not help. */
    public Optional<Duration> retryAfter() {
        return whole == null ? Optional.empty() : whole.retryAfter();
    }

    /** MISMATCH: "fingerprint" or "caller"; otherwise "". */
    public String differs() {
        return whole == null ? "" : whole.differs();
    }

    /** Another attempt runs: ask again, with the same key. */
    public static final class InFlight extends HapaxException {
        private static final long serialVersionUID = 1;

        InFlight(String answer, String text, Answer whole) {
            super(answer, text, whole);
        }
    }

    /** An earlier attempt's result is not known; nothing ran. */
    public static final class Unknown extends HapaxException {
        private static final long serialVersionUID = 1;

        Unknown(String answer, String text, Answer whole) {
            super(answer, text, whole);
        }
    }

    /** The key was used for another request, or by another caller. */
    public static final class Mismatch extends HapaxException {
        private static final long serialVersionUID = 1;

        Mismatch(String answer, String text, Answer whole) {
            super(answer, text, whole);
        }
    }

    /** The store, or the door, cannot be reached; nothing ran. */
    public static final class StoreDown extends HapaxException {
        private static final long serialVersionUID = 1;

        StoreDown(String answer, String text, Answer whole) {
            super(answer, text, whole);
        }
    }

    /** The door is gone. The handler ran, and whether its outcome is stored is not known. Ask again, with the same key. */
    public static final class Indeterminate extends HapaxException {
        private static final long serialVersionUID = 1;

        Indeterminate(String text) {
            super("indeterminate", text, null);
        }
    }

    static HapaxException of(Answer answer) {
        String text = answer.text();
        if (text.isEmpty() && answer.status() >= 400)
            text = answer.bodyText();
        if (!answer.differs().isEmpty())
            text = "another " + answer.differs() + (text.isEmpty() ? "" : ": " + text);
        return switch (answer.answer()) {
            case "in_flight" -> new InFlight("in_flight", text, answer);
            case "unknown" -> new Unknown("unknown", text, answer);
            case "mismatch" -> new Mismatch("mismatch", text, answer);
            case "store_down" -> new StoreDown("store_down", text, answer);
            case "replay" -> new HapaxException("failed", text, answer); // under on_failed=replay
            default -> new HapaxException(answer.answer(), text, answer);
        };
    }
}
