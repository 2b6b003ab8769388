// SPDX-License-Identifier: Apache-2.0
package hapax;

import java.nio.charset.StandardCharsets;

/** Names an operation: a scope ("refunds") and a key that is the same whenever the same thing is meant ("order-17"). */
public record Key(String scope, byte[] key) {
    /** Scope and key have 1 to 255 bytes of UTF-8. Without a key nothing runs. */
    public static Key of(String scope, String key) {
        return new Key(scope, key.getBytes(StandardCharsets.UTF_8));
    }

    /** A key of any bytes. */
    public static Key of(String scope, byte[] key) {
        return new Key(scope, key.clone());
    }
}
