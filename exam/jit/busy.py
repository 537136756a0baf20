# Three threads of loops, strings and exceptions, which PyPy compiles by traces.
import threading


def work(seed, rounds):
    values, total = {}, seed
    for i in range(rounds):
        values[i % 97] = 'v%d' % (i * seed)
        total = (total * 31 + 7 + len(values[i % 97])) % 1000003
        if i % 50 == 0:
            try:
                if total % 2 == 0:
                    raise ValueError('even')
                total += 1
            except ValueError as error:
                total += len(str(error))
    return total


sums = []
threads = [threading.Thread(target=lambda seed=seed: sums.append(work(seed, 6000))) for seed in range(1, 4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sum(sums))
