// Memory from the heap of the device, and blocks of bytes.
struct Node { Node *next; unsigned value; };
extern "C" __global__ void k(unsigned *out, const unsigned *in, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    Node *list = nullptr;
    for (unsigned j = 0; j < in[i] % 5 + 1; j++) {
        Node *node = (Node *)malloc(sizeof(Node));
        node->next = list; node->value = in[(i + j) % n]; list = node;
    }
    unsigned s = 0;
    while (list) { Node *next = list->next; s = s * 3 + list->value; free(list); list = next; }
    char bytes[40];
    memset(bytes, (int)(i & 127), sizeof bytes);
    memcpy(bytes + (i & 15), in + i % (n - 4), 13);
    for (int j = 0; j < 40; j++) s = s * 7 + bytes[j];
    unsigned *fresh = new unsigned[3];
    fresh[0] = s; fresh[1] = i;
    out[i] = fresh[0] + fresh[1];
    delete[] fresh;
}
