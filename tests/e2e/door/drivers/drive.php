<?php
// Runs the page's snippet for PHP's PDO: drive.php DSN (test_drivers.py). Its storm is one of processes.
require './snippet.php';

function attempt(callable $what): string
{
    try {
        [$verdict, $body] = $what();
        return "ok $verdict $body\n";
    } catch (PDOException $e) {
        return 'error ' . ($e->errorInfo[0] ?? '-') . ' ' . strtr($e->getMessage(), "\n", ' ') . "\n";
    }
}

$dsn = $argv[1];
$held = null;
while ($line = fgets(STDIN)) {
    $words = explode(' ', trim($line));
    if ($words[0] === 'pay') {
        $held ??= connect($dsn);
        $answer = attempt(fn () => pay($held, $words[1], (int) $words[2]));
        if (str_starts_with($answer, 'error')) {
            $held = null;
        }
        echo $answer;
    } elseif ($words[0] === 'storm') {
        $held = null; // a child would end the parent's connection
        for ($i = 0; $i < (int) $words[1]; $i++) {
            if (pcntl_fork() === 0) {
                echo attempt(fn () => pay_again(connect($dsn), $words[2], (int) $words[3]));
                exit;
            }
        }
        while (pcntl_wait($status) > 0);
    } else {
        echo attempt(function () use ($dsn, $words) {
            connect($dsn)->prepare('SELECT FROM hapax.complete(?, 201)')->execute([$words[1]]);
            return ['', ''];
        });
    }
}
