/* Several threads whose code a virtual machine compiles while it runs, and throws away again: exceptions, calls of several classes
 * through one interface, and more rounds than an interpreter is left with. */
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

public class Busy {
    interface Step {
        long apply(long x);
    }

    static long work(int seed, int rounds) {
        Map<Integer, String> map = new HashMap<>();
        long sum = seed;
        Step[] steps = {x -> x * 31 + 7, x -> x ^ (x >>> 3), x -> x + rounds};
        for (int i = 0; i < rounds; i++) {
            map.put(i % 97, "v" + (i * seed));
            sum = steps[i % 3].apply(sum);
            if (i % 50 == 0) {
                try {
                    if ((sum & 1) == 0) {
                        throw new IllegalStateException("even");
                    }
                    sum++;
                } catch (IllegalStateException e) {
                    sum += e.getMessage().length();
                }
            }
        }
        for (String value : map.values()) {
            sum = sum * 17 + value.hashCode();
        }
        return sum;
    }

    public static void main(String[] arguments) throws Exception {
        int rounds = Integer.parseInt(arguments[0]);
        ExecutorService pool = Executors.newFixedThreadPool(3);
        List<Future<Long>> all = new ArrayList<>();
        for (int i = 1; i <= 12; i++) {
            int seed = i;
            all.add(pool.submit(() -> work(seed, rounds)));
        }
        long sum = 0;
        for (Future<Long> one : all) {
            sum += one.get();
        }
        pool.shutdown();
        System.out.println(sum);
    }
}
