// SPDX-License-Identifier: Apache-2.0
package hapax.spring;

import hapax.Codec;
import hapax.Hapax;

import org.springframework.aop.framework.autoproxy.AbstractBeanFactoryAwareAdvisingPostProcessor;
import org.springframework.aop.support.DefaultPointcutAdvisor;
import org.springframework.aop.support.annotation.AnnotationMatchingPointcut;

import java.util.function.Supplier;

/**
 * Gives beans with {@link Idempotent} methods a proxy that runs those. For applications without Spring Boot, whose
 * auto-configuration has it: a static {@code @Bean} method makes it. Hapax and codec are asked for at the first call.
 */
public final class IdempotentPostProcessor extends AbstractBeanFactoryAwareAdvisingPostProcessor {
    private static final long serialVersionUID = 1;

    public IdempotentPostProcessor(Supplier<Hapax> hapax, Supplier<Codec> codec) {
        setBeforeExistingAdvisors(true); // around a transaction: what is stored was committed
        setProxyTargetClass(true);
        advisor = new DefaultPointcutAdvisor(new AnnotationMatchingPointcut(null, Idempotent.class, true),
                new IdempotentInterceptor(hapax, codec));
    }
}
