import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Runs cases one after the other, each with a time limit, and prints a JSON object on one line about each. */
final class Cases {
    private static final Duration LIMIT = Duration.ofSeconds(60);
    private static final ObjectMapper JSON = new ObjectMapper();

    private final ExecutorService threads =
            Executors.newCachedThreadPool(
                    task -> {
                        Thread thread = new Thread(task, "case");
                        thread.setDaemon(true);
                        return thread;
                    });

    /** What a case does; it fails with any exception but Skipped. */
    interface Body {
        void run() throws Exception;
    }

    /** Why a case cannot run here. */
    static final class Skipped extends Exception {
        Skipped(String reason) {
            super(reason);
        }
    }

    void run(String name, Body body) {
        if (!Service.CASES.isEmpty() && !Service.CASES.contains(name)) {
            return;
        }
        Future<?> running =
                threads.submit(
                        () -> {
                            body.run();
                            return null;
                        });
        try {
            running.get(LIMIT.toSeconds(), TimeUnit.SECONDS);
            print(name, "passed", "");
        } catch (TimeoutException late) {
            running.cancel(true);
            print(name, "failed", "still running after " + LIMIT.toSeconds() + " s");
        } catch (ExecutionException failed) {
            Throwable cause = failed.getCause();
            boolean isSkipped = cause instanceof Skipped;
            print(name, isSkipped ? "skipped" : "failed", isSkipped ? cause.getMessage() : describe(cause));
        } catch (InterruptedException unexpected) {
            throw new IllegalStateException(unexpected);
        }
    }

    static void check(boolean holds, String message) {
        if (!holds) {
            throw new AssertionError(message);
        }
    }

    static void equal(Object expected, Object found, String what) {
        check(Objects.equals(expected, found), what + ": expected " + expected + ", got " + found);
    }

    /** What the body throws, unwrapped; fails where it throws nothing, or takes longer than the limit for refusals. */
    static Throwable refusal(Duration limit, Body body) {
        long started = System.nanoTime();
        try {
            body.run();
        } catch (Throwable error) {
            long seconds = TimeUnit.NANOSECONDS.toSeconds(System.nanoTime() - started);
            check(seconds < limit.toSeconds(), "refused only after " + seconds + " s: " + error);
            boolean isWrapped = error instanceof ExecutionException || error.getClass() == RuntimeException.class;
            return isWrapped && error.getCause() != null ? error.getCause() : error;
        }
        throw new AssertionError("nothing was refused");
    }

    private static String describe(Throwable error) {
        StackTraceElement ours = null;
        for (StackTraceElement element : error.getStackTrace()) {
            if (ours == null && element.getClassName().endsWith("Suite")) {
                ours = element;
            }
        }
        return error + (ours == null ? "" : " (" + ours.getFileName() + ":" + ours.getLineNumber() + ")");
    }

    private static synchronized void print(String name, String outcome, String detail) {
        Map<String, String> line = new LinkedHashMap<>();
        line.put("name", name);
        line.put("outcome", outcome);
        line.put("detail", detail);
        try {
            System.out.println(JSON.writeValueAsString(line));
        } catch (JsonProcessingException impossible) {
            throw new IllegalStateException(impossible);
        }
        System.out.flush();
    }
}
