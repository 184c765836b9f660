// Upstream's headers name a database by pointer; its comparison opens none.
#pragma once

struct sqlite3;
