// SPDX-License-Identifier: Apache-2.0
package hapax;

import java.util.Optional;

/**
 * Asked before an operation runs again whose attempt died: did its effect happen? A result: it did, and this is it. Empty:
 * it did not, and the handler runs. An exception: nobody can tell, and the caller gets a {@link HapaxException} "unknown".
 */
@FunctionalInterface
public interface Reconciler<T> {
    Optional<T> ask(Op op) throws Exception;
}
