module shoal/tools/pause

go 1.25.0
