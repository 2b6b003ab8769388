// SPDX-License-Identifier: Apache-2.0
package hapax;

import java.lang.reflect.Type;

/**
 * How results become bytes. Without one they are JSON: null, booleans, numbers, texts, lists, maps, enums and records.
 * With Jackson's {@code ObjectMapper} it is {@code writeValueAsBytes(value)} and
 * {@code readValue(bytes, mapper.constructType(type))}.
 */
public interface Codec {
    /** The codec that is used without another. */
    static Codec json() {
        return new Json();
    }

    /** The bytes of a value, which may be null. What has none is refused with an unchecked exception. */
    byte[] encode(Object value) throws Exception;

    /** The value of these bytes. What is no such value is refused with an unchecked exception. */
    Object decode(byte[] bytes, Type type) throws Exception;
}
