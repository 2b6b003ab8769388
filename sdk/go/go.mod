module hapax.example/hapax

go 1.19
