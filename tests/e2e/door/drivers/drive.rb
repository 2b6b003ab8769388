# Runs the page's snippet for Ruby's pg: drive.rb DSN (test_drivers.py).
require "./snippet"

$stdout.sync = true
held = nil

def attempt
  verdict, body = yield
  "ok #{verdict} #{body}"
rescue PG::Error => e
  "error #{e.result&.error_field(PG::PG_DIAG_SQLSTATE) || '-'} #{e.message.tr("\n", ' ')}"
end

def once
  conn = PG.connect(ARGV[0])
  attempt { yield conn }
ensure
  conn&.close
end

while (line = $stdin.gets)
  command, *words = line.split
  case command
  when "pay"
    held ||= PG.connect(ARGV[0])
    answer = attempt { pay(held, words[0], words[1].to_i) }
    if answer.start_with?("error")
      held.close
      held = nil
    end
    puts answer
  when "storm"
    threads = (1..words[0].to_i).map { Thread.new { once { |conn| pay_again(conn, words[1], words[2].to_i) } } }
    puts threads.map(&:value)
  else
    puts once { |conn| conn.exec_params("SELECT FROM hapax.complete($1, 201)", [words[0]]) && ["", ""] }
  end
end
