// SPDX-License-Identifier: Apache-2.0
package hapax;

/** Thrown by the handler of a message: the message is hopeless. It is dead, and is not tried again. */
public class Refused extends RuntimeException {
    private static final long serialVersionUID = 1;

    public Refused(String message) {
        super(message);
    }

    public Refused(Throwable cause) {
        super(cause);
    }
}
