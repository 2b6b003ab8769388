module shop

// 5.5.5 is the last one for the Go 1.19 of Debian 12.
go 1.19

require (
	github.com/jackc/pgx/v5 v5.5.5
	hapax.example/hapax v0.0.0
)

require (
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20221227161230-091c0ba34f0a // indirect
	golang.org/x/crypto v0.17.0 // indirect
	golang.org/x/text v0.14.0 // indirect
)

replace hapax.example/hapax => ../../sdk/go
