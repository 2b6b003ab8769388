// SPDX-License-Identifier: Apache-2.0
package hapax.spring;

import java.lang.annotation.Documented;
import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * A method of a bean that runs at most once for each key, and gives every caller the result of that run:
 *
 * <pre>{@code
 * @Idempotent(key = "#order.id", policy = "on_expired=hold")
 * public Receipt refund(Order order, Op op) { … }
 * }</pre>
 *
 * It is {@link hapax.Hapax#once}, with the same results and exceptions, around the transaction of a method that is
 * {@code @Transactional}: the outcome is stored after the commit. A parameter of the type {@link hapax.Op} gets the attempt;
 * callers pass null. A result is kept as JSON by the codec, in the method's own type, generic or not. It must be there when
 * the method returns: a future or a publisher is refused before the method runs. As with every proxy of Spring's, a call
 * within the same bean is a plain call.
 *
 * The values of key, owner and fingerprint are expressions of Spring's (SpEL) in which parameters have their names
 * ({@code #order}, if the classes were compiled with -parameters, as Spring Boot does) or places ({@code #p0}).
 */
@Documented
@Target(ElementType.METHOD)
@Retention(RetentionPolicy.RUNTIME)
public @interface Idempotent {
    /** An expression: what is the same whenever the same thing is meant. Empty or null is refused. */
    String key();

    /** The namespace of the keys; by default the class and the method, as in Payments.refund. */
    String scope() default "";

    /** An expression: whose key it is; by default there is no owner. Of no owner nothing runs. */
    String owner() default "";

    /** An expression: what makes the call this call; by default all arguments but the attempt, as JSON. */
    String fingerprint() default "";

    /** Policies, each by its name and value as everywhere: "on_expired=hold", "retention=7d". */
    String[] policy() default {};
}
