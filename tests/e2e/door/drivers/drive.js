// Runs the page's snippet for a driver of Node: drive.js DSN (test_drivers.py).
'use strict';
const path = require('path');
const { connect, pay, payAgain } = require(path.resolve('snippet.js'));

const db = connect(process.argv[2]);
const shown = ([verdict, body]) => `ok ${verdict} ${body ? body.toString() : ''}`;

async function attempt(what, ...args) {
  try {
    return shown(await what(...args));
  } catch (e) {
    return `error ${e.code || '-'} ${e.message}`.replace(/\n/g, ' ');
  }
}

async function complete(token) {
  await (db.query ? db.query('SELECT FROM hapax.complete($1, 201)', [token])
    : db`SELECT FROM hapax.complete(${token}, 201)`);
  return ['', null];
}

async function main() {
  for await (const line of require('readline').createInterface({ input: process.stdin })) {
    const [command, ...words] = line.split(' ');
    let answers;
    if (command === 'pay') answers = [await attempt(pay, db, words[0], Number(words[1]))];
    else if (command === 'storm') {
      answers = await Promise.all(Array.from({ length: Number(words[0]) },
        () => attempt(payAgain, db, words[1], Number(words[2]))));
    } else answers = [await attempt(complete, words[0])];
    process.stdout.write(answers.map((answer) => `${answer}\n`).join(''));
  }
  process.exit(0);
}

main();
