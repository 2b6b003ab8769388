// SPDX-License-Identifier: Apache-2.0
package hapax;

/**
 * Thrown by a handler: surely nothing happened, and a retry runs. Once a step was begun the attempt has failed all the same:
 * the step may have had its effect.
 */
public class NotRun extends RuntimeException {
    private static final long serialVersionUID = 1;

    public NotRun(String message) {
        super(message);
    }

    public NotRun(Throwable cause) {
        super(cause);
    }
}
