// The page of hapax web. It asks the API, whose answers are the lines that the commands print with --json, and makes
// elements of them. Foreign text (a scope, a key, a body) gets into the page as text only: nothing here writes HTML, and
// the page's policy (Content-Security-Policy) forbids it.
'use strict';

const STATES = ['unknown', 'started', 'failed', 'completed'];
const POLL_MS = 5000;
const PAGE = 50;

let session = null;
let view = 'now';       // what the address says: now, operations, many, outbox, dead, op
let turn = 0;           // counts the views: an answer for a view that was left is dropped
let timer = 0;
const points = new Map(); // of a door, by its place: an hour of rates
const list = {filter: {state: ['unknown', 'started', 'failed']}, cursors: ['start'], at: 0};
let find = false;        // the next list has its cursor where a key is typed
let found = null;       // an operation that was found by its key: how it was asked for

// ---- elements ---------------------------------------------------------------------------

function fill(element, children) {
  for (const child of children.flat(Infinity))
    if (child !== null && child !== undefined && child !== false)
      element.append(child instanceof Node ? child : shown(String(child)));
  return element;
}

// Characters that are not seen but act, as those that turn the direction of what follows (hapax__json_acts), as \uXXXX.
function shown(words) {
  return words.replace(/[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g,
    c => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`);
}

// h('td', {class: 'x', onclick: f}, 'text', element, …)
function h(name, attributes, ...children) {
  const svg = ['svg', 'rect', 'title'].includes(name);
  const element = svg ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, '');
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
  }
  return fill(element, children);
}

function put(...children) {
  document.getElementById('main').replaceChildren();
  fill(document.getElementById('main'), children);
}

function say(text, kind) {
  const place = document.getElementById('message');
  place.replaceChildren();
  if (text) place.append(h('span', {class: kind || 'bad'}, text));
}

// ---- words ------------------------------------------------------------------------------

function age(us) {
  const units = [['d', 86400], ['h', 3600], ['m', 60], ['s', 1]];
  let seconds = Math.max(0, us) / 1e6;
  if (seconds < 1) return `${Math.round(seconds * 1000)}ms`;
  const first = units.findIndex(([, size]) => seconds >= size);
  const text = `${Math.floor(seconds / units[first][1])}${units[first][0]}`;
  const rest = first < 3 ? Math.floor(seconds % units[first][1] / units[first + 1][1]) : 0;
  return rest > 0 ? `${text}${rest}${units[first + 1][0]}` : text;
}

function moment(us) {
  return new Date(us / 1000).toISOString().replace('T', ' ').slice(0, 19) + ' UTC';
}

function number(value, digits = 0) {
  return value === null || value === undefined ? '–' : value.toLocaleString('en', {maximumFractionDigits: digits});
}

function milliseconds(value) {
  return value === null || value === undefined ? '–' : value < 10 ? `${value.toFixed(1)} ms` : `${number(Math.round(value))} ms`;
}

// A member whose bytes are no text comes as NAME_base64.
function text(record, name) {
  return record[name] !== undefined ? record[name] : record[`${name}_base64`] !== undefined ? `${record[`${name}_base64`]} (base64)` : null;
}

function isOver(record, now) {
  return record.state === 'started' && record.lease_until_us !== null && record.lease_until_us <= now;
}

function badge(record, now) {
  const over = isOver(record, now);
  return h('span', {class: `state ${over ? 'over' : record.state}`}, over ? 'lease over' : record.state);
}

// ---- the API ----------------------------------------------------------------------------

async function api(path, body) {
  try {
    const answer = await fetch(`api/${path}`, {method: 'POST', body: JSON.stringify(body || {}),
      headers: {'Content-Type': 'application/json', 'X-Hapax-Token': session.token}});
    const all = await answer.text();
    if (!(answer.headers.get('Content-Type') || '').startsWith('application/x-ndjson'))
      return {status: answer.status, lines: [], why: all.trim() || `status ${answer.status}`};
    const lines = all.split('\n').filter(line => line).map(line => JSON.parse(line));
    const failed = lines.find(line => line.error && line.text !== undefined); // a letter has errors, too
    return {status: answer.status, lines, why: failed ? `${failed.error}: ${failed.text}` : ''};
  } catch (error) {
    return {status: 0, lines: [], why: `hapax web does not answer: ${error.message}`};
  }
}

// ---- a table of operations --------------------------------------------------------------

function rows(records, now, more) {
  return h('div', {class: 'table'}, h('table', null,
    h('thead', null, h('tr', null, h('th', null, 'State'), h('th', {class: 'number'}, 'Age'),
      h('th', {class: 'number less'}, 'Attempt'), h('th', {class: 'less'}, 'Lease'), h('th', null, 'Scope'),
      h('th', null, 'What'), h('th', {class: 'less'}, 'Id'), more ? h('th', null, more.title) : null)),
    h('tbody', null, records.map(record => h('tr', {class: 'open', 'data-id': record.id, onclick: () => go(`op/${record.id}`)},
      h('td', null, badge(record, now)),
      h('td', {class: 'number'}, age(now - record.updated_us)),
      h('td', {class: 'number less'}, record.attempt),
      h('td', {class: 'nowrap less'}, record.state !== 'started' ? '–' : isOver(record, now) ?
        `over for ${age(now - record.lease_until_us)}` : `${age(record.lease_until_us - now)} left`),
      h('td', {class: 'nowrap'}, text(record, 'scope')),
      h('td', {class: 'what'}, text(record, 'what') || '–'),
      h('td', {class: 'mono less'}, h('a', {href: `#op/${record.id}`}, record.id.slice(0, 10))),
      more ? h('td', null, record[more.member]) : null)))));
}

// ---- now ----------------------------------------------------------------------------------

function tile(total, more) {
  const kind = total.name === 'lease over' ? 'over' : total.state;
  const show = () => { list.filter = {state: [total.state]}; list.cursors = ['start']; list.at = 0; };
  return h('a', {class: `card tile ${kind}${total.count ? '' : ' zero'}`, href: '#operations', onclick: show},
    h('small', null, {unknown: 'Unknown', over: 'Lease over', started: 'Running', failed: 'Failed'}[kind]),
    h('b', null, number(total.count), more ? '+' : ''),
    h('small', null, total.count ? `oldest ${age(total.oldest_us)}` : 'none'));
}

function chart(history) {
  const svg = h('svg', {viewBox: '0 0 720 60', preserveAspectRatio: 'none', role: 'img', 'aria-label': 'Answers a second, the last hour'});
  const most = Math.max(1, ...history.map(p => p.fresh + p.replay + p.other));
  svg.append(h('rect', {class: 'base', x: 0, y: 59.4, width: 720, height: 0.6}));
  const wide = 720 / Math.max(60, history.length); // five minutes at least
  history.forEach((p, i) => {
    const x = 720 - (history.length - i) * wide;
    let y = 60;
    for (const kind of ['fresh', 'replay', 'other']) {
      const tall = p[kind] / most * 58;
      y -= tall;
      if (tall > 0) svg.append(h('rect', {class: kind, x, y, width: wide + 0.05, height: tall}));
    }
  });
  return svg;
}

// Figures that are shown only while they are an incident, or nearly one (ops/prometheus/hapax.rules.yml). `all`: each by its name.
const SOON = 14 * 86400;
const INCIDENTS = {store_dead: v => v > 0, store_clock_ahead_seconds: v => Math.abs(v) > 1,
  store_disk_free_bytes: (v, all) => v < 2 ** 30 && !(v >= all.store_disk_size_bytes / 10), store_disk_size_bytes: () => false,
  store_certificate_seconds: v => v < SOON, gate_certificate_seconds: v => v < SOON};

function amount(name, value) {
  if (name.endsWith('_seconds')) return `${value < 0 ? '−' : ''}${age(Math.abs(value) * 1e6)}`;
  if (name.endsWith('_bytes')) return value < 2 ** 20 ? `${number(value)} B` : `${number(value / 2 ** 20, 1)} MiB`;
  return number(value, 1);
}

function figure({name, value}) {
  return h('span', null, `${name.replace(/_(total|seconds|bytes)$/, '').replaceAll('_', ' ')} `,
    h('b', {class: INCIDENTS[name] ? 'bad' : null}, amount(name, value)));
}

function door(watch, place) {
  const history = points.get(place) || [];
  const rate = name => (watch.answers.find(a => a.answer === name) || {}).rate;
  const others = watch.answers.filter(a => !['fresh', 'replay'].includes(a.answer) && a.rate > 0);
  const all = Object.fromEntries(watch.figures.map(f => [f.name, f.value]));
  const figures = watch.figures.filter(f => (INCIDENTS[f.name] ? INCIDENTS[f.name](f.value, all) : f.value > 0 || /in_flight|in_hand|lag$|replicas$/.test(f.name)));
  return h('section', {class: 'card'},
    h('div', {class: 'door'}, h('span', null, watch.url), watch.up ? h('b', null, `${number(watch.rate, 1)}/s`) : h('b', {class: 'bad'}, 'down')),
    watch.up ? chart(history) : h('p', {class: 'bad'}, watch.text),
    watch.up ? h('div', {class: 'legend'},
      h('span', {class: 'fresh-dot'}, 'fresh ', h('b', null, number(rate('fresh'), 1))),
      h('span', {class: 'replay-dot'}, 'replay ', h('b', null, number(rate('replay'), 1))),
      others.map(a => h('span', {class: 'other-dot'}, `${a.answer} `, h('b', null, number(a.rate, 1))))) : null,
    h('div', {class: 'legend'}, watch.times.map(t => h('span', null, `${t.name.replace(/_seconds$/, '').replaceAll('_', ' ')} p50 `,
      h('b', null, milliseconds(t.p50_ms)), ' p99 ', h('b', null, milliseconds(t.p99_ms)))),
    figures.map(figure)));
}

async function drawNow() {
  const mine = turn;
  const last = Math.max(0, ...[...points.values()].map(all => (all.length ? all[all.length - 1].at_us : 0)));
  const answer = await api('now', {since_us: last});
  if (mine !== turn) return;
  if (!answer.lines.length) return say(answer.why);
  const now = answer.lines[0];
  for (const [place, watch] of now.watch.entries()) // two URLs may differ in what is not shown
    points.set(place, (points.get(place) || []).concat(watch.points).slice(-720));
  say('');
  document.title = now.totals && now.totals[0].count ? `${now.totals[0].count} unknown · Hapax` : 'Hapax';
  put(h('h1', null, 'Now'),
    now.error ? h('p', {class: 'card bad'}, `The store: ${now.error}: ${now.text}`) : null,
    now.totals ? h('div', {class: 'tiles'}, now.totals.map(total => tile(total, now.more))) : null,
    now.more ? h('p', {class: 'quiet'}, 'There are more than were counted: 10,000, or as many as a second allows, or damage was passed over.') : null,
    now.watch.length ? [h('h2', null, 'Doors'), h('div', {class: 'grid'}, now.watch.map(door))] :
      h('p', {class: 'quiet'}, 'No door is watched: start hapax web with --watch URL, the page of a door’s metrics.'),
    now.oldest && now.oldest.length ? [h('h2', null, 'Waiting longest'), rows(now.oldest, now.now_us)] :
      now.totals && !now.more ? h('p', {class: 'good'}, 'Nothing waits for an operator, and no attempt seems to have died.') : null);
}

// ---- operations -----------------------------------------------------------------------------

function field(label, name, attributes, wide) {
  return h('label', {class: wide ? 'wide' : null}, label, h('input', {name, autocomplete: 'off', spellcheck: 'false', ...attributes}));
}

function choice(label, name, values, chosen) {
  return h('label', null, label, h('select', {name}, values.map(([value, words]) => h('option', {value, selected: value === chosen}, words))));
}

// What a form says, without what is empty.
function said(form) {
  const all = {};
  for (const [name, value] of new FormData(form)) if (value !== '') all[name] = value;
  return all;
}

// Whether a form still stands there and says the same. Otherwise what was asked for it is not what it would confirm.
function stands(form, all) {
  return form.isConnected && JSON.stringify(said(form)) === JSON.stringify(all);
}

function filterForm() {
  const chosen = list.filter.state.length === 1 ? list.filter.state[0] : list.filter.state.length === 4 ? 'all' : 'unfinished';
  const submit = event => {
    event.preventDefault();
    const filter = said(event.target);
    filter.state = {unfinished: ['unknown', 'started', 'failed'], all: STATES}[filter.state] || [filter.state];
    Object.assign(list, {filter, cursors: ['start'], at: 0});
    drawOperations();
  };
  return h('form', {onsubmit: submit, 'aria-label': 'Filter'},
    choice('State', 'state', [['unfinished', 'unfinished'], ['all', 'all'], ...STATES.map(s => [s, s])], chosen),
    field('Scope', 'scope', {value: list.filter.scope, maxlength: 255}), field('Owner', 'owner', {value: list.filter.owner, maxlength: 255}),
    field('Older than', 'older', {value: list.filter.older, placeholder: '5m, 2h, 1d', size: 4}),
    h('button', null, 'Filter'));
}

function findForm() {
  const submit = async event => {
    event.preventDefault();
    const asked = said(event.target);
    const answer = await api('show', asked);
    if (answer.status !== 200) return say(answer.status === 404 ?
      'There is no operation of this key. Scope and owner have to be those of the service.' : answer.why);
    found = {id: answer.lines[0].id, asked};
    go(`op/${found.id}`);
  };
  return h('form', {onsubmit: submit, 'aria-label': 'Find by key'},
    field('Find a key', 'key', {id: 'find', required: true, maxlength: 257, placeholder: '/'}),
    field('Scope', 'scope', {placeholder: 'default'}), field('Owner', 'owner', {}), field('Step', 'step', {size: 4}),
    h('button', null, 'Find'));
}

async function drawOperations() {
  const mine = turn;
  const answer = await api('list', {...list.filter, limit: PAGE, after: list.cursors[list.at]});
  if (mine !== turn) return;
  const end = answer.lines.find(line => line.after !== undefined);
  if (!end) { put(h('h1', null, 'Operations'), findForm(), filterForm()); return say(answer.why); }
  const records = answer.lines.filter(line => line.id);
  const turnTo = at => () => { list.at = at; drawOperations(); };
  list.cursors = list.cursors.slice(0, list.at + 1).concat(end.more ? [end.after] : []);
  say(answer.why);
  put(h('h1', null, 'Operations'), findForm(), filterForm(),
    records.length ? rows(records, end.now_us) : h('p', {class: 'card quiet'}, end.more ? 'None on this page.' : 'There are none.'),
    h('div', {class: 'row'},
      h('button', {id: 'before', disabled: list.at === 0, onclick: turnTo(list.at - 1)}, '‹ Before'),
      h('button', {id: 'next', disabled: !end.more, onclick: turnTo(list.at + 1)}, 'Next ›'),
      h('span', {class: 'quiet'}, `Page ${list.at + 1}. In the order of their ids, not of time.`)));
  if (find) document.getElementById('find').focus();
  find = false;
}

// ---- one operation ------------------------------------------------------------------------

function timeline(record, now) {
  const at = (kind, us, words, small) => h('li', {class: kind}, h('span', null, words),
    h('small', null, us ? `${moment(us)} · ${us > now ? `in ${age(us - now)}` : `${age(now - us)} ago`}` : '', small ? `${us ? ' · ' : ''}${small}` : ''));
  const ended = {completed: `Completed with status ${record.status}`, failed: record.ran ? 'Failed; it may have had its effect' : 'Failed; it had no effect',
    unknown: 'Unknown: nobody can tell whether it happened'}[record.state];
  const by = text(record, 'resolved_by');
  return h('ol', {class: 'line'},
    at('started', record.created_us, 'First asked for'),
    at('started', 0, `Attempt ${record.attempt} is the last`, record.stale ? 'an attempt died, and nobody knows what it did' : 'of those before it no times are kept'),
    record.state === 'started' ? at(isOver(record, now) ? 'over' : 'started', record.lease_until_us,
      isOver(record, now) ? 'Its lease ended: it seems to have died' : 'It runs, and its lease lasts until') : null,
    record.resolved_us ? at('completed', record.resolved_us, `Resolved by ${by}`,
      record.replaced_state ? `it was ${record.replaced_state}${record.replaced_status ? `, status ${record.replaced_status}` : ''}` : '') : null,
    ended ? at(record.state, record.updated_us, ended) : at('started', record.updated_us, 'Last sign of life'),
    record.expires_us ? at('quiet', record.expires_us, 'Forgotten') : at('quiet', 0, 'Kept until it is resolved'));
}

function steps(record, now) {
  if (!record.steps || !record.steps.length) return null;
  const begin = Math.min(record.created_us || now, ...record.steps.filter(s => s.created_us).map(s => s.created_us));
  const end = Math.max(begin + 1, ...record.steps.filter(s => s.updated_us).map(s => s.updated_us), record.updated_us || 0);
  return [h('h2', null, 'Steps'), h('div', {class: 'table'}, h('table', null, h('tbody', null, record.steps.map(step => h('tr', null,
    h('td', null, text(step, 'step')), h('td', null, badge(step, now)), h('td', {class: 'number'}, step.status || '–'),
    h('td', null, step.created_us ? h('svg', {class: 'bar', viewBox: '0 0 100 8', preserveAspectRatio: 'none'}, h('rect', {class: 'base', x: 0, y: 3, width: 100, height: 2}),
      h('rect', {class: 'step', x: (step.created_us - begin) / (end - begin) * 100, y: 0, height: 8,
        width: Math.max(1, (step.updated_us - step.created_us) / (end - begin) * 100)})) : null))))))];
}

function facts(record) {
  const pair = (name, value) => (value === null || value === undefined || /^0*$/.test(value) ? null : [h('dt', null, name), h('dd', {class: 'mono'}, value)]);
  return h('dl', {class: 'facts'}, pair('id', record.id), pair('scope', text(record, 'scope')), pair('owner', record.owner), pair('fence', record.fence),
    pair('hold', record.hold ? 'yes' : null), pair('reruns', record.reruns ? 'yes' : null), pair('fingerprint', record.fingerprint), pair('caller', record.caller),
    pair('trace', record.trace));
}

function answerOf(record, asked) {
  if (record.state !== 'completed' && !record.status && !record.body_size) return null;
  const body = h('pre', {hidden: true, id: 'body'});
  const show = async event => {
    event.target.disabled = true;
    const answer = await api('show', {...asked, body: true});
    if (answer.status !== 200) return say(answer.why);
    body.hidden = false;
    body.textContent = shown(text(answer.lines[0], 'body')) + (answer.lines[0].body_size > 65536 ? '\n… cut at 64 KiB' : '');
  };
  return [h('h2', null, record.state === 'completed' ? 'The stored answer' : 'What the last attempt answered'), h('div', {class: 'card'},
    h('dl', {class: 'facts'}, h('dt', null, 'status'), h('dd', null, record.status), record.headers.map(line => [h('dt', null, 'header'), h('dd', {class: 'mono'}, line)]),
      h('dt', null, 'body'), h('dd', null, record.body_kept ? `${number(record.body_size)} bytes` : 'not kept')),
    record.body_kept && record.body_size ? h('button', {onclick: show}, 'Show the body') : null, body)];
}

const ACTS = {complete: 'It happened: repeats get this answer', fail: 'It did not happen: the next request runs it', forget: 'Forget it: the next request is the first'};
const BECOMES = {complete: 'completed', fail: 'failed', forget: 'forgotten'};

function actFields() {
  const complete = [field('Status', 'status', {type: 'number', min: 0, max: 999, value: 200, size: 4}), field('Content-Type', 'type', {placeholder: 'application/json'}),
    h('label', {class: 'wide'}, 'Body', h('textarea', {name: 'text', spellcheck: 'false'}))];
  const place = h('div', {class: 'wide row'});
  const select = choice('What is true', 'act', [['', 'choose …'], ...Object.entries(ACTS)], '');
  select.addEventListener('change', event => { place.replaceChildren(); if (event.target.value === 'complete') fill(place, complete); });
  return [select, place];
}

// The members of a resolve, from what its form says. Null: no act was chosen.
function actOf(form) {
  const asked = said(form);
  if (!asked.act) return null;
  if (asked.act !== 'complete') return {[asked.act]: true};
  return {complete: Number(asked.status || 200), ...(asked.type ? {header: [`Content-Type: ${asked.type}`]} : {}), ...(asked.text ? {text: asked.text} : {})};
}

function resolveForm(record, asked) {
  if (!session.may_resolve) return h('p', {class: 'quiet'}, 'This page only reads (no --allow resolve). ', h('code', null, `hapax resolve --id ${record.id.slice(0, 8)}… --fail`));
  if (record.state === 'completed') return h('p', {class: 'quiet'}, 'It has completed. Only hapax resolve --force replaces that.');
  const sign = record.id.slice(0, 4);
  const submit = async event => {
    event.preventDefault();
    const act = actOf(event.target);
    if (!act) return say('Choose what is true.');
    if (said(event.target).sign !== sign) return say(`Type the first four digits of the id: ${sign}`);
    const mine = turn;
    const answer = await api('resolve', {...asked, 'if-attempt': record.attempt, 'if-updated': record.updated_us, ...act});
    const line = answer.lines[0] || {};
    if (answer.status === 200) say(`Resolved by ${text(line, 'resolved_by')}.`, 'good');
    else say(answer.why || `Not resolved: ${line.text}${text(line, 'resolved_by') ? `, by ${text(line, 'resolved_by')}` : ''}. It is ${line.state}.`);
    if (mine === turn) drawOperation(record.id, true);
  };
  return h('form', {onsubmit: submit, id: 'resolve', 'aria-label': 'Resolve'}, actFields(),
    field(`Type ${sign} to confirm`, 'sign', {size: 4, maxlength: 4, required: true}), h('button', {class: 'main'}, `Resolve as ${session.who}`));
}

async function drawOperation(id, keep) {
  const mine = turn;
  const asked = found && found.id === id ? found.asked : {id};
  const answer = await api('show', asked);
  if (mine !== turn) return;
  if (!keep) say('');
  if (answer.status !== 200) {
    put(h('h1', null, 'No such operation'), h('p', {class: 'mono'}, id));
    return answer.status === 404 ? null : say(answer.why);
  }
  const record = answer.lines[0];
  const now = record.now_us;
  put(h('h1', null, text(record, 'what') || `Operation ${id.slice(0, 10)}`),
    h('p', null, badge(record, now), h('span', {class: 'quiet'}, ` in ${text(record, 'scope')}`)),
    h('p', {class: 'card gets'}, 'The next request with this key ', h('b', null, record.repeat), '.'),
    h('div', {class: 'columns'},
      h('div', null, h('h2', null, 'What happened'), h('div', {class: 'card'}, timeline(record, now)), steps(record, now), answerOf(record, asked)),
      h('div', null, h('h2', null, 'Resolve'), h('div', {class: 'card'}, resolveForm(record, asked)), h('h2', null, 'Facts'), h('div', {class: 'card'}, facts(record)))));
}

// ---- many -----------------------------------------------------------------------------------

function drawMany() {
  const place = h('div');
  if (!session.may_resolve)
    return put(h('h1', null, 'Resolve many'), h('p', {class: 'card quiet'}, 'This page only reads. Start hapax web with --allow resolve, or use ', h('code', null, 'hapax resolve --state unknown --dry-run'), '.'));
  const show = (records, member, title) => {
    const now = Math.max(0, ...records.map(r => r.updated_us), Date.now() * 1000);
    return [records.length ? rows(records.slice(0, 100), now, {member, title}) : null,
      records.length > 100 ? h('p', {class: 'quiet'}, `… and ${number(records.length - 100)} more`) : null];
  };
  const look = async event => {
    event.preventDefault();
    const form = event.target;
    const act = actOf(form);
    if (!act) return say('Choose what is true.');
    const all = said(form);
    const {state, scope, owner, older} = all;
    const answer = await api('resolve', {...JSON.parse(JSON.stringify({scope, owner, older})), state: [state], limit: 1000, 'dry-run': true, ...act});
    if (!stands(form, all)) return;
    const records = answer.lines.filter(line => line.id);
    const sum = answer.lines.find(line => line.found !== undefined);
    say(answer.why);
    place.replaceChildren();
    if (!sum) return;
    // Those that were shown, as they were shown, and no others. It ends at the first failure.
    const go = async next => {
      next.preventDefault();
      if (said(next.target).sign !== String(sum.found)) return say(`Type ${sum.found}, the number of operations.`);
      for (const control of [...form.elements, ...next.target.elements]) control.disabled = true;
      const done = {200: 0, 409: 0};
      let why = '';
      for (const record of records) {
        const one = await api('resolve', {id: record.id, 'if-attempt': record.attempt, 'if-updated': record.updated_us, ...act});
        if (done[one.status] === undefined) { why = one.why; record.result = 'not known'; break; }
        done[one.status]++;
        record.result = one.status === 200 ? 'resolved' : 'passed over';
      }
      for (const control of form.elements) control.disabled = false;
      say(`${done[200]} resolved by ${session.who}; ${done[409]} passed over, since they changed meanwhile.` +
        (why ? ` Then it failed, with ${records.length - done[200] - done[409]} left: ${why}` : ''), why ? 'bad' : 'good');
      place.replaceChildren();
      fill(place, show(records, 'result', 'Result'));
    };
    const becomes = `${BECOMES[all.act]}${act.complete === undefined ? '' : ` with status ${act.complete}`}`;
    fill(place, [h('h2', null, `${number(sum.found)} operations would be resolved as ${becomes}${sum.more ? '; there are more' : ''}`),
      sum.found ? h('form', {onsubmit: go, id: 'confirm'}, field(`Type ${sum.found} to confirm`, 'sign', {size: 4, required: true}), h('button', {class: 'main'}, `Resolve ${number(sum.found)} as ${becomes}`)) : null,
      show(records, 'would_be', 'Would be')]);
  };
  put(h('h1', null, 'Resolve many'), h('p', {class: 'quiet'}, 'First they are listed; then you confirm. What runs, or has changed meanwhile, is passed over. At most 1000 at a time.'),
    h('form', {onsubmit: look, id: 'many', 'aria-label': 'Resolve many', oninput: () => place.replaceChildren()}, choice('State', 'state', [['unknown', 'unknown'], ['failed', 'failed'], ['started', 'started']], 'unknown'),
      field('Scope', 'scope', {}), field('Owner', 'owner', {}), field('Older than', 'older', {placeholder: '1h', size: 4}), actFields(), h('button', null, 'List them')), place);
}

// ---- outbox and dead letters ------------------------------------------------------------------

async function drawOutbox() {
  const mine = turn;
  if (!session.has_outbox)
    return put(h('h1', null, 'Outbox'), h('p', {class: 'card quiet'}, 'An outbox is in a PostgreSQL. This store is another one: start hapax web with --store postgres://…'));
  const answer = await api('outbox');
  if (mine !== turn) return;
  const now = Date.now() * 1000;
  const back = async event => {
    event.preventDefault();
    if (said(event.target).sign !== 'put back') return say('Type: put back');
    const done = await api('redrive');
    const sum = done.lines.find(line => line.put_back !== undefined);
    say((sum ? `${sum.at_least ? 'At least ' : ''}${number(sum.put_back)} are published after all. ` : '') + done.why, done.why ? 'bad' : 'good');
    if (mine === turn) drawOutbox();
  };
  if (answer.status !== 200) say(answer.why);
  put(h('h1', null, 'Outbox'), h('p', {class: 'quiet'}, 'Messages that a relay put aside, since the broker refuses them. Their keys and payloads are not shown.'),
    answer.lines.length ? h('div', {class: 'table'}, h('table', null,
      h('thead', null, h('tr', null, ['Seq', 'Aside for', 'Tries', 'Size', 'Topic', 'Aggregate', 'Error'].map(name => h('th', null, name)))),
      h('tbody', null, answer.lines.map(row => h('tr', null, h('td', null, row.seq), h('td', null, age(now - row.ended_us)), h('td', null, row.tries), h('td', null, number(row.size)),
        h('td', null, text(row, 'topic')), h('td', null, text(row, 'aggregate')), h('td', {class: 'what'}, text(row, 'error'))))))) : h('p', {class: 'card good'}, 'None was put aside.'),
    answer.lines.length >= 200 ? h('p', {class: 'quiet'}, 'The first 200. There may be more, and all of them are put back.') : null,
    answer.lines.length && session.may_resolve ? h('form', {onsubmit: back, class: 'row'}, field('Type put back to publish all of them', 'sign', {required: true}), h('button', {class: 'main'}, 'Put back')) : null);
}

function quoted(word) {
  return `'${word.replaceAll("'", "'\\''")}'`;
}

function lettersTable(letters, now) {
  return h('div', {class: 'table'}, h('table', {class: 'letters'},
    h('thead', null, h('tr', null, ['Put back', 'Reason', 'Dead for', 'Attempts', 'Scope', 'Operation', 'Error'].map(name => h('th', null, name)))),
    h('tbody', null, letters.map(letter => h('tr', null, h('td', null, letter.put_back ? 'yes' : 'left'), h('td', null, text(letter, 'reason') || 'the broker’s'),
      h('td', null, Number(letter.time_us) ? age(now - Number(letter.time_us)) : '–'), h('td', null, text(letter, 'attempts') || '–'), h('td', null, text(letter, 'scope') || '–'),
      h('td', {class: 'mono'}, /^[0-9a-f]{64}$/.test(letter.id) ? h('a', {href: `#op/${letter.id}`}, letter.id.slice(0, 10)) : '–'),
      h('td', {class: 'what'}, text(letter, 'error') || '–'))))));
}

// The dead letters of a pair of --dead: listed when asked, then put back.
function queueOf(dead, queue) {
  const place = h('div');
  const name = (dead.from.match(/[?&]queue=([^&]*)/) || dead.from.match(/([^/?]*)(?:\?|$)/))[1]; // or the topic's
  let asked = null;
  const look = async event => {
    event.preventDefault();
    const form = event.target;
    const words = said(form);
    const {all, ...rest} = words;
    asked = {queue, ...rest, ...(all ? {all: true} : {})};
    const button = form.querySelector('button');
    button.disabled = true;
    const answer = await api('letters', asked);
    button.disabled = false;
    if (!stands(form, words)) return;
    const letters = answer.lines.filter(line => line.put_back !== undefined);
    say(answer.why);
    place.replaceChildren();
    fill(place, [letters.length ? lettersTable(letters, Date.now() * 1000) : answer.why ? null : h('p', {class: 'good'}, 'There are none.'),
      letters.length >= 50 ? h('p', {class: 'quiet'}, 'The first 50.') : null,
      letters.some(letter => letter.put_back) ? h('form', {onsubmit: back, class: 'row', 'aria-label': 'Put back'},
        field('At most', 'limit', {type: 'number', min: 1, max: 1000, value: 100, size: 4, required: true}), field(`Type ${name} to put them back to ${dead.to}`, 'sign', {required: true}),
        h('button', {class: 'main'}, 'Put back')) : null]);
  };
  const back = async event => {
    event.preventDefault();
    const {limit, sign} = said(event.target);
    if (sign !== name) return say(`Type ${name}, the queue or topic of the dead letters.`);
    for (const control of event.target.elements) control.disabled = true;
    const done = await api('put-back', {...asked, limit: Number(limit)});
    const sum = done.lines.find(line => line.left !== undefined);
    say((sum ? `${number(sum.put_back)} put back, ${number(sum.left)} left${sum.failed_again ? `, ${number(sum.failed_again)} of these failed again` : ''}. ` : '') + done.why,
      done.why ? 'bad' : 'good');
    place.replaceChildren();
  };
  return h('section', {class: 'card'}, h('h2', null, dead.from),
    h('p', {class: 'quiet'}, 'To look takes the first 50 off for a second and gives them back, which the broker counts as a delivery. No key and no body is shown.'),
    h('form', {onsubmit: look, 'aria-label': `Look at ${name}`, oninput: () => place.replaceChildren()}, field('Scope', 'scope', {}), field('Key', 'key', {}), field('Where the key is', 'key-from', {placeholder: 'id'}),
      choice('Which', 'all', [['', 'failed and refused'], ['1', 'all']], ''), h('button', null, 'Look')), place);
}

function commandForm() {
  const command = h('pre', {id: 'command'}, 'hapax redrive --from … --to … --dry-run');
  const write = event => {
    const {from, to, dry} = said(event.currentTarget);
    command.textContent = `hapax redrive --from ${quoted(from || '…')} --to ${quoted(to || '…')}${dry ? ' --dry-run' : ''}`;
  };
  return [h('h2', null, 'Put them back'), h('p', {class: 'quiet'}, 'This page does so where hapax web has --dead and --allow resolve. Elsewhere this command lists them, and puts them back without --dry-run:'),
    h('form', {oninput: write, onsubmit: event => event.preventDefault()}, field('From', 'from', {placeholder: 'amqp://localhost/?queue=orders.dead'}, true),
      field('To', 'to', {placeholder: 'amqp://localhost/?queue=orders'}, true), choice('What', 'dry', [['1', 'list them'], ['', 'put them back']], '1')), command];
}

async function drawDead() {
  const mine = turn;
  const answer = await api('now', {since_us: Date.now() * 1000});
  if (mine !== turn) return;
  const counts = ((answer.lines[0] || {}).watch || []).map(watch => [watch.url, Object.fromEntries(watch.figures.map(f => [f.name, f.value]))])
    .filter(([, f]) => f.consumer_dead_lettered_total !== undefined);
  put(h('h1', null, 'Dead letters'), counts.length ? h('div', {class: 'table'}, h('table', null,
    h('thead', null, h('tr', null, h('th', null, 'Consumer'), ['Dead letters', 'Parked', 'Retried', 'Refused by the broker'].map(name => h('th', {class: 'number'}, name)))),
    h('tbody', null, counts.map(([url, f]) => h('tr', null, h('td', {class: 'what'}, url),
      ['consumer_dead_lettered_total', 'consumer_parked_total', 'consumer_retried_total', 'consumer_letters_refused'].map(name => h('td', {class: 'number'}, number(f[name])))))))) :
    h('p', {class: 'card quiet'}, 'No consumer is watched: start hapax web with --watch URL, the --metrics of hapax consume.'),
  session.may_resolve ? session.dead.map(queueOf) : null,
  session.dead.length && session.may_resolve ? null : commandForm());
}

// ---- moving about --------------------------------------------------------------------------

const VIEWS = {now: drawNow, operations: drawOperations, many: drawMany, outbox: drawOutbox, dead: drawDead};

function go(where) {
  if (location.hash === `#${where}`) route(); else location.hash = where;
}

function draw(keep) {
  return view === 'op' ? drawOperation(location.hash.slice(4), keep) : VIEWS[view]();
}

function route() {
  const where = location.hash.slice(1) || 'now';
  turn++;
  view = /^op\/[0-9a-f]{64}$/.test(where) ? 'op' : VIEWS[where] ? where : 'now';
  for (const link of document.querySelectorAll('nav a')) {
    if (link.hash === `#${view === 'op' ? 'operations' : view}`) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  say('');
  document.title = 'Hapax';
  draw();
}

// Now is drawn again and again while somebody looks; the other views stand still, so that nothing moves under a hand.
function tick() {
  clearTimeout(timer);
  timer = setTimeout(async () => {
    try {
      if (!document.hidden && view === 'now') await drawNow();
    } finally {
      tick();
    }
  }, POLL_MS);
}

function move(by) {
  const all = [...document.querySelectorAll('tr.open')];
  const at = all.findIndex(row => row.classList.contains('at'));
  const next = all[Math.min(all.length - 1, Math.max(0, at + by))];
  if (at >= 0) all[at].classList.remove('at');
  if (next) { next.classList.add('at'); next.scrollIntoView({block: 'nearest'}); }
}

function press(id) {
  const button = document.getElementById(id);
  if (button) button.click();
}

function key(event) {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === 'Escape') { if (typing) event.target.blur(); else history.back(); return; }
  if (typing) return;
  const keys = {1: () => go('now'), 2: () => go('operations'), 3: () => go('many'), 4: () => go('outbox'), 5: () => go('dead'),
    j: () => move(1), k: () => move(-1), '[': () => press('before'), ']': () => press('next'), r: () => draw(),
    Enter: () => { const row = document.querySelector('tr.at'); if (row) go(`op/${row.dataset.id}`); },
    '/': () => { find = true; if (view === 'operations') drawOperations(); else go('operations'); }};
  if (keys[event.key] && !(event.key === 'Enter' && /^(A|BUTTON)$/.test(event.target.tagName))) { event.preventDefault(); keys[event.key](); }
}

async function begin() {
  const answer = await fetch('api/session');
  session = await answer.json();
  fill(document.getElementById('session'), [`${session.store} · ${session.may_resolve ? `${session.who} may resolve` : session.who ? `${session.who}, reading` : 'reading'}`]);
  addEventListener('hashchange', route);
  addEventListener('keydown', key);
  document.addEventListener('visibilitychange', () => { if (!document.hidden && view === 'now') drawNow(); });
  route();
  tick();
}

begin().catch(error => say(`hapax web does not answer: ${error.message}`));
