// SPDX-License-Identifier: Apache-2.0
package hapax;

import java.util.concurrent.atomic.AtomicBoolean;

/**
 * Thrown by a handler: surely nothing happened, and a retry runs. Once a step was begun the attempt has failed all the same:
 * the step may have had its effect. It counts once, for the call whose handler threw it: where it passes on through the
 * handler of another call, that one has failed. Throw a new one each time.
 */
public class NotRun extends RuntimeException {
    private static final long serialVersionUID = 1;
    /** It has ended a call. That call's caller, which it goes to, may be the handler of another, which may have had an effect. */
    final AtomicBoolean counted = new AtomicBoolean();

    public NotRun(String message) {
        super(message);
    }

    public NotRun(Throwable cause) {
        super(cause);
    }
}
