// Three threads whose code is compiled while it runs, and thrown away again.
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');

function work(seed, rounds) {
  const map = new Map();
  const steps = [x => (x * 31 + 7) | 0, x => x ^ (x >>> 3), x => (x + rounds) | 0];
  let sum = seed;
  for (let i = 0; i < rounds; i++) {
    map.set(i % 97, 'v' + i * seed);
    sum = steps[i % 3](sum);
    if (i % 50 === 0) {
      try {
        if (sum & 1) throw new Error('odd');
        sum++;
      } catch (error) {
        sum += error.message.length;
      }
    }
  }
  for (const value of map.values()) sum = (sum * 17 + value.length) | 0;
  return sum;
}

if (isMainThread) {
  let [left, sum] = [2, 0];
  for (let seed = 1; seed <= 2; seed++) {
    const worker = new Worker(__filename, { workerData: seed });
    worker.on('message', value => {
      sum += value;
      if (--left === 0) console.log(sum + work(9, 20000));
    });
  }
} else {
  parentPort.postMessage(work(workerData, 20000));
}
