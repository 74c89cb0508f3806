#define SMALL 1
