// Upstream's headers name it; nothing of its comparison calls it.
#pragma once
