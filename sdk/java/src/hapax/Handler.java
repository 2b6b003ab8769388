// SPDX-License-Identifier: Apache-2.0
package hapax;

/**
 * What runs once. Every value is a result, null too. An exception says that it failed; {@link NotRun} that surely nothing
 * happened; {@link UnknownResult}, or an InterruptedException, that nobody can tell.
 */
@FunctionalInterface
public interface Handler<T, E extends Exception> {
    T run(Op op) throws E;
}
