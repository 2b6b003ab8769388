// SPDX-License-Identifier: Apache-2.0
package hapax.spring;

import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.boot.context.properties.bind.DefaultValue;

import java.time.Duration;
import java.util.List;
import java.util.Map;

/**
 * hapax.*
 *
 * @param address unix:PATH; by default $HAPAX_DOOR, or else unix:/run/hapax/door.sock
 * @param timeout how long to look for a door that is not there
 * @param filter of HTTP requests
 */
@ConfigurationProperties("hapax")
public record HapaxProperties(String address, @DefaultValue("10s") Duration timeout, @DefaultValue Filter filter) {
    /**
     * hapax.filter.*
     *
     * @param urlPatterns the requests that run once, as "/payments/*"; none: there is no filter
     * @param scope the namespace of their keys
     * @param policy policies by name, as everywhere: {@code hapax.filter.policy.on_expired=hold}
     * @param order of the filter among all; by default the last, so behind those of Spring Security
     */
    public record Filter(@DefaultValue List<String> urlPatterns, @DefaultValue("default") String scope,
            @DefaultValue Map<String, String> policy, @DefaultValue("2147483647") int order) {
    }
}
