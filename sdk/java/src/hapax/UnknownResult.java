// SPDX-License-Identifier: Apache-2.0
package hapax;

/** Thrown by a handler or a reconcile hook: nobody can tell what happened, and on_expired decides. */
public class UnknownResult extends RuntimeException {
    private static final long serialVersionUID = 1;

    public UnknownResult(String message) {
        super(message);
    }

    public UnknownResult(Throwable cause) {
        super(cause);
    }
}
