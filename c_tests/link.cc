// The header from C++17: C linkage, TCUDA_INIT, handles and statuses.
#include "check.h"

int main()
{
    CHECK_EQ(tcuda_version(), TCUDA_VERSION);
    SKIP_WITHOUT_GPU();

    tcuda_device_info info = TCUDA_INIT(tcuda_device_info);
    CHECK_EQ(info.struct_size, sizeof info);
    CHECK_OK(tcuda_device_properties(TCUDA_CURRENT_DEVICE, &info));

    tcuda_stream *stream = nullptr;
    CHECK_OK(tcuda_stream_create(TCUDA_CURRENT_DEVICE, 0, &stream));
    CHECK_OK(tcuda_stream_destroy(stream));
    return finish();
}
