// SPDX-License-Identifier: Apache-2.0
package hapax.spring;

import hapax.Codec;
import hapax.Handler;
import hapax.Hapax;
import hapax.Op;
import hapax.Options;
import hapax.Request;

import org.aopalliance.intercept.MethodInterceptor;
import org.aopalliance.intercept.MethodInvocation;
import org.springframework.aop.ProxyMethodInvocation;
import org.springframework.aop.support.AopUtils;
import org.springframework.context.expression.MethodBasedEvaluationContext;
import org.springframework.core.DefaultParameterNameDiscoverer;
import org.springframework.core.ParameterNameDiscoverer;
import org.springframework.core.ReactiveAdapterRegistry;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.expression.Expression;
import org.springframework.expression.spel.standard.SpelExpressionParser;

import java.lang.reflect.Method;
import java.lang.reflect.UndeclaredThrowableException;
import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Future;
import java.util.function.Supplier;

/** Runs methods that are {@link Idempotent}. */
final class IdempotentInterceptor implements MethodInterceptor {
    private static final ParameterNameDiscoverer NAMES = new DefaultParameterNameDiscoverer();
    private final SpelExpressionParser parser = new SpelExpressionParser();
    private final Map<String, Expression> expressions = new ConcurrentHashMap<>(); // by their text
    private final Supplier<Hapax> hapax;
    private final Supplier<Codec> codec;

    IdempotentInterceptor(Supplier<Hapax> hapax, Supplier<Codec> codec) {
        this.hapax = hapax;
        this.codec = codec;
    }

    @Override
    public Object invoke(MethodInvocation call) throws Throwable {
        Method method = AopUtils.getMostSpecificMethod(call.getMethod(), call.getThis().getClass());
        Class<?> type = method.getReturnType();
        if (Future.class.isAssignableFrom(type) || ReactiveAdapterRegistry.getSharedInstance().getAdapter(type) != null)
            throw new IllegalStateException("a result that is not there yet cannot be kept: " + method);
        Handler<Object, Exception> handler = op -> {
            Object[] arguments = call.getArguments().clone();
            for (int i = 0; i < arguments.length; i++)
                if (method.getParameterTypes()[i] == Op.class)
                    arguments[i] = op;
            ((ProxyMethodInvocation) call).setArguments(arguments);
            try {
                return call.proceed();
            } catch (Exception | Error e) {
                throw e;
            } catch (Throwable e) {
                throw new UndeclaredThrowableException(e);
            }
        };
        return hapax.get().call(requestOf(call, method), method.getGenericReturnType(), handler);
    }

    private Request requestOf(MethodInvocation call, Method method) throws Exception {
        Idempotent idempotent = AnnotatedElementUtils.findMergedAnnotation(method, Idempotent.class);
        Object[] arguments = call.getArguments();
        var values = new MethodBasedEvaluationContext(null, method, arguments, NAMES);
        Object key = value(idempotent.key(), values);
        if (key == null || key.toString().isEmpty())
            throw new IllegalArgumentException("the key " + idempotent.key() + " of " + method + " is empty");
        String name = method.getDeclaringClass().getSimpleName() + "." + method.getName();
        Object print = idempotent.fingerprint().isEmpty()
                ? Arrays.stream(arguments, 0, arguments.length).filter(argument -> !(argument instanceof Op)).toArray()
                : value(idempotent.fingerprint(), values);
        Request request = new Request().set("scope", idempotent.scope().isEmpty() ? name : idempotent.scope())
                .set("key", key.toString()).set("what", name).body(codec.get().encode(print)).set("body", "json");
        if (!idempotent.owner().isEmpty()) {
            Object owner = value(idempotent.owner(), values);
            request.set("owner", owner == null ? "" : owner.toString());
        }
        Options policies = Options.none();
        for (String policy : idempotent.policy())
            policies.policy(policy.substring(0, Math.max(0, policy.indexOf('='))), policy.substring(policy.indexOf('=') + 1));
        policies.into(request);
        return request;
    }

    private Object value(String expression, MethodBasedEvaluationContext values) {
        return expressions.computeIfAbsent(expression, parser::parseExpression).getValue(values);
    }
}
