// SPDX-License-Identifier: Apache-2.0
package hapax;

/** Thrown by a handler: surely nothing happened, and a retry runs. */
public class NotRun extends RuntimeException {
    private static final long serialVersionUID = 1;

    public NotRun(String message) {
        super(message);
    }

    public NotRun(Throwable cause) {
        super(cause);
    }
}
