// SPDX-License-Identifier: Apache-2.0
package hapax;

import java.time.Duration;

/**
 * What becomes of a message.
 *
 * @param todo "ack": it is done with; "retry": deliver it again, after a pause; "dead": to the dead letters; "park": to the
 *        parked letters, for an operator
 * @param after with retry: the pause
 * @param reason with dead and park: "failed", "refused", "mismatch", …; otherwise ""
 * @param line the reason for people
 * @param thrown what this handler threw; null: nothing, or it did not run
 */
public record Told(String todo, Duration after, String reason, String line, Throwable thrown) {
    Told(Answer answer, Throwable thrown) {
        this(answer.text("do"), Duration.ofMillis(answer.number("after_ms")), answer.text("reason"), answer.text("line"), thrown);
    }
}
